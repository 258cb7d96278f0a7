"""Train a windowed Llama in the processes of a launcher, sharded or not, and write what happened.

torchrun --nproc-per-node 2 sharded.py fsdp2 FOLDER
accelerate launch --cpu --num_processes 2 sharded.py accelerate FOLDER
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tiny import VOCABULARY, model_of, open_windows
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
from torch.distributed.checkpoint.state_dict import set_state_dict as load_state
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from diffwindow.hf import add_windows

STEPS, CLIP = 6, 0.5


def build() -> nn.Module:
    torch.manual_seed(0)
    return open_windows(add_windows(model_of("llama"), "Dec(AW)@all")).train()


def batch(step: int, rank: int = 0, size: int = 1) -> torch.Tensor:
    """Give the share of a process in the sentences of a step."""
    rows = torch.randint(3, VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(step))
    return rows.tensor_split(size)[rank]


def losses(model, optimizer, steps, *, rank=0, size=1) -> list[list[float]]:
    """Take steps; give the mean loss over all processes and the norm of the gradients of each step."""
    found = []
    for step in steps:
        rows = batch(step, rank, size)
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        if size > 1:
            dist.all_reduce(total)
        found.append(
            [total.item() / size, float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)]
        )
    return found


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def shard(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def with_fsdp2(folder: Path) -> dict[str, object]:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    try:
        add_windows(shard(model_of("llama")), "Dec(AW)")
        refusal = ""
    except ValueError as error:
        refusal = str(error)
    model = shard(build())
    optimizer = make_optimizer(model)
    found = losses(model, optimizer, range(STEPS // 2), rank=rank, size=size)
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / "checkpoint")
    found += losses(model, optimizer, range(STEPS // 2, STEPS), rank=rank, size=size)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        model.save_pretrained(folder / "model", state_dict=whole)
    # another process would begin like this
    model = shard(build())
    optimizer = make_optimizer(model)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=folder / "checkpoint")
    load_state(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    resumed = losses(model, optimizer, range(STEPS // 2, STEPS), rank=rank, size=size)
    dist.destroy_process_group()
    return {"rank": rank, "losses": found, "resumed": resumed, "refusal": refusal}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    result = with_fsdp2(place)
    (place / f"{result['rank']}.json").write_text(json.dumps(result))
