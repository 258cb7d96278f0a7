"""Windows in models that several processes train: FSDP2 under torchrun, DDP under accelerate."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sharded
import torch
from tiny import outputs_of
from torch.testing import assert_close

import diffwindow
from diffwindow.hf import load_windows

pytestmark = pytest.mark.slow
SCRIPT = Path(sharded.__file__)
LAUNCHERS = {
    "fsdp2": ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"],
    # on a CPU too: with --cpu it starts a single process
    "accelerate": [
        *("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
        *("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"),
    ],
}
REFUSALS = {
    "fsdp2": "FSDPLlamaForCausalLM is sharded; add or remove windows first, and call fully_shard after that",
    "accelerate": "the model is in DistributedDataParallel; add or remove windows first, and call "
    "DistributedDataParallel or accelerate's prepare after that",
}


@pytest.fixture(scope="module")
def alone():
    """Return the model, losses and norms of one process."""
    model = sharded.build()
    return model, sharded.losses(
        model, sharded.make_optimizer(model), map(sharded.batch, range(sharded.STEPS))
    )


@pytest.mark.parametrize("way", LAUNCHERS)
def test_two_processes_train_as_one(tmp_path, alone, way):
    pytest.importorskip("accelerate")
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    paths = [Path(diffwindow.__file__).parents[1], SCRIPT.parents[1]]
    subprocess.run(
        [sys.executable, "-m", *LAUNCHERS[way], str(SCRIPT), way, str(tmp_path)],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        check=True,
        timeout=300,
    )
    model, expected = alone
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for result in results:
        # losses, and norms of gradients that were clipped
        assert_close(torch.tensor(result["losses"]), torch.tensor(expected), rtol=1e-4, atol=1e-5)
        # the same bits as without the interruption
        assert result["resumed"] == result["losses"][sharded.SAVED :]
        assert result["refusal"] == REFUSALS[way]
    loaded = type(model).from_pretrained(tmp_path / "model")
    load_windows(loaded, tmp_path / "model")
    trained = outputs_of("llama", model.eval())
    assert_close(outputs_of("llama", loaded.eval()), trained, rtol=1e-3, atol=1e-3)
