"""Windows in models that several processes train: FSDP2 under torchrun."""

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
LAUNCHER = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
REFUSAL = "FSDPLlamaForCausalLM is sharded; add or remove windows first, and call fully_shard after that"


@pytest.fixture(scope="module")
def alone():
    """Return the model, losses and norms of one process."""
    model = sharded.build()
    return model, sharded.losses(model, sharded.make_optimizer(model), range(sharded.STEPS))


def test_two_processes_train_as_one(tmp_path, alone):
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    paths = [Path(diffwindow.__file__).parents[1], SCRIPT.parents[1]]
    subprocess.run(
        [sys.executable, "-m", *LAUNCHER, str(SCRIPT), str(tmp_path)],
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
        assert result["resumed"] == result["losses"][sharded.STEPS // 2 :]
        assert result["refusal"] == REFUSAL
    loaded = type(model).from_pretrained(tmp_path / "model")
    load_windows(loaded, tmp_path / "model")
    trained = outputs_of("llama", model.eval())
    assert_close(outputs_of("llama", loaded.eval()), trained, rtol=1e-3, atol=1e-3)
