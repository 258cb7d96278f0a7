"""Models with weights of eight bits, for use on CPUs: a quarter of the memory, and faster products."""

from torch import nn

from diffwindow.attention.base import StackedAttention
from diffwindow.kernels.int8 import Int8Linear
from diffwindow.models.layers import FeedForward, TokenEmbedding


def round_weights(model: nn.Module) -> None:
    """Round the embedding and the linear layers of all blocks to eight bits, in place.

    Inputs of a layer are rounded row by row, as they come. Attention, windows and norms stay as they are.
    """
    for module in model.modules():
        if isinstance(module, StackedAttention):
            _round_layers(module, "in_proj", "out_proj")
        elif isinstance(module, FeedForward):
            _round_layers(module, "inner", "outer")
        elif isinstance(module, TokenEmbedding):
            module.round_weight()


def _round_layers(module: nn.Module, *names: str) -> None:
    for name in names:
        layer = getattr(module, name)
        setattr(module, name, Int8Linear(layer.weight, layer.bias))
