"""Train a windowed Llama in the processes of a launcher, sharded or not, and write what happened.

torchrun --nproc-per-node 2 sharded.py fsdp2 FOLDER
accelerate launch --multi_gpu --num_processes 2 sharded.py accelerate FOLDER
"""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tiny import VOCABULARY, model_of, open_windows
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
from torch.distributed.checkpoint.state_dict import set_state_dict as load_state
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from diffwindow.hf import add_windows

STEPS, SAVED, CLIP = 6, 3, 0.5


def build() -> nn.Module:
    torch.manual_seed(0)
    return open_windows(add_windows(model_of("llama"), "Dec(AW)@all")).train()


def batch(step: int) -> Tensor:
    """Return the sentences of a step."""
    return torch.randint(3, VOCABULARY, (4, 9), generator=torch.Generator().manual_seed(step))


def losses(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Tensor],
    *,
    mean: Callable[[Tensor], Tensor] = Tensor.clone,
    backward: Callable[[Tensor], None] = Tensor.backward,
    clip: Callable[..., Tensor] = nn.utils.clip_grad_norm_,
) -> list[list[float]]:
    """Take steps; return the loss of each, as its mean over all processes, and the norm of its gradients."""
    found = []
    for rows in batches:
        loss = model(input_ids=rows, labels=rows).loss
        backward(loss)
        norm = clip(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        whole_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        found.append([mean(loss.detach()).item(), whole_norm.item()])
    return found


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def shard(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def refusal_of(model: nn.Module) -> str:
    """Return what adding windows too late says."""
    try:
        add_windows(model, "Dec(AW)")
    except ValueError as error:
        return str(error)
    return ""


def with_fsdp2(folder: Path) -> dict[str, object]:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    refusal = refusal_of(shard(model_of("llama")))

    def mean(loss: Tensor) -> Tensor:
        dist.all_reduce(loss)
        return loss / size

    def shares(*steps: int) -> list[Tensor]:
        return [batch(step).tensor_split(size)[rank] for step in steps]

    model = shard(build())
    optimizer = make_optimizer(model)
    found = losses(model, optimizer, shares(*range(SAVED)), mean=mean)
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / "checkpoint")
    found += losses(model, optimizer, shares(*range(SAVED, STEPS)), mean=mean)
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
    resumed = losses(model, optimizer, shares(*range(SAVED, STEPS)), mean=mean)
    dist.destroy_process_group()
    return {"rank": rank, "losses": found, "resumed": resumed, "refusal": refusal}


def with_accelerate(folder: Path) -> dict[str, object]:
    from accelerate import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    refusal = refusal_of(accelerator.prepare(model_of("llama")))
    ways = {
        "mean": lambda loss: accelerator.reduce(loss, "mean"),
        "backward": accelerator.backward,
        "clip": accelerator.clip_grad_norm_,
    }

    def begin():
        accelerator.free_memory()
        model = build()
        rows = torch.cat([batch(step) for step in range(STEPS)])
        return accelerator.prepare(model, make_optimizer(model), DataLoader(rows, batch_size=4))

    model, optimizer, loader = begin()
    found = []
    for step, rows in enumerate(loader):
        if step == SAVED:
            accelerator.save_state(folder / "checkpoint")
        found += losses(model, optimizer, [rows], **ways)
    accelerator.unwrap_model(model).save_pretrained(
        folder / "model", is_main_process=accelerator.is_main_process, save_function=accelerator.save
    )
    model, optimizer, loader = begin()
    accelerator.load_state(folder / "checkpoint")
    resumed = losses(model, optimizer, accelerator.skip_first_batches(loader, SAVED), **ways)
    accelerator.end_training()
    return {"rank": accelerator.process_index, "losses": found, "resumed": resumed, "refusal": refusal}


if __name__ == "__main__":
    place = Path(sys.argv[2])
    result = {"fsdp2": with_fsdp2, "accelerate": with_accelerate}[sys.argv[1]](place)
    (place / f"{result['rank']}.json").write_text(json.dumps(result))
