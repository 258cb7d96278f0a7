"""Tiny tasks, and the barest training loop, so that tasks are tested by themselves."""

import torch

from diffwindow.data.batching import TokenBatches
from diffwindow.tasks.entries import TaskOptions
from diffwindow.tasks.task import model_config, task_of

TINY = {"embed_dim": 32, "ffn_dim": 64, "num_heads": 2, "dropout": 0.0}


def of(store, *, attention="Global", settings=None, **options):
    layers = {"translation": {"encoder_layers": 1, "decoder_layers": 1}}.get(store.task, {"num_layers": 1})
    config = model_config(store, TINY | layers | {"attention": attention} | (settings or {}))
    return task_of(store, config, TaskOptions(**options))


def trained(task, *, updates, rate=1e-3, max_tokens=2048, seed=0):
    """Train a fresh model with Adam at a constant rate; give it and the loss by unit of each update."""
    torch.manual_seed(seed)
    model = task.build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    batches, losses = TokenBatches(task.lengths("train"), max_tokens=max_tokens, seed=seed), []
    while len(losses) < updates:
        for indices in batches:
            batch = task.collate("train", indices)
            loss = task.loss(model, batch)
            optimizer.zero_grad()
            (loss / batch.units).backward()
            optimizer.step()
            losses.append(loss.item() / batch.units)
            if len(losses) == updates:
                break
    return model, losses
