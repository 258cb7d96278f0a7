"""Linear layers with weights of eight bits, for inference: a C++ kernel, and plain PyTorch for the rest.

y = s_x s_W (q_x q_Wᵀ) + b with q = round(v / s). Each output of the weight has its own s_W, and each row of
x its own s_x, so that no row depends on the others; sums of integers are exact.
"""

import functools
import struct
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from diffwindow.kernels import build, cpu, toolchain

# The C++ `Int8Rows`, eight bytes per field.
_LAYOUT = struct.Struct("=11q")
# outputs side by side in a block of the packed weight, and inputs that one instruction adds up
_BLOCK, _QUAD = 64, 4
_LARGEST = 127.0
# below, a row counts as zero, and 127 / max would overflow
_SMALLEST = 1e-30
NOT_TRAINED = "weights of eight bits cannot be trained; load the model without dtype='int8'"


class Int8Linear(nn.Module):
    """A linear layer of another's weight and bias, rounded to eight bits; it cannot be trained or saved.

    >>> layer, x = nn.Linear(8, 3), torch.randn(5, 8)
    >>> bool((Int8Linear(layer.weight, layer.bias)(x) - layer(x)).abs().max() < 0.1)
    True
    """

    # padded to whole blocks and quads; packed as the kernel reads it, if there is one: [block, quad, 64, 4]
    weight: Int[Tensor, "..."]
    scale: Float[Tensor, " padded"]
    offset: Int[Tensor, " padded"]
    bias: Float[Tensor, " padded"]

    def __init__(self, weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.training = False
        exact = weight.detach().float()
        largest = exact.abs().amax(-1)
        rounded = (exact * _inverse(largest)[:, None]).round().to(torch.int8)
        more = -self.out_features % _BLOCK
        padded = F.pad(rounded, (0, -self.in_features % _QUAD, 0, more))
        zeros = exact.new_zeros(self.out_features)
        buffers = {
            "weight": _pack(padded) if _has_kernel() else padded,
            "scale": F.pad(largest / _LARGEST, (0, more)),
            # the kernel adds 128 to the rounded inputs, which are unsigned there
            "offset": padded.sum(-1, dtype=torch.int32) * 128,
            "bias": F.pad(zeros if bias is None else bias.detach().float(), (0, more)),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Float[Tensor, "*lead i"]) -> Float[Tensor, "*lead o"]:
        """Multiply by the weight and add the bias."""
        return self.outputs(x, 0, self.out_features)

    def outputs(self, x: Float[Tensor, "*lead i"], first: int, last: int) -> Float[Tensor, "*lead some"]:
        """Compute the outputs from `first` to `last` alone."""
        if torch.is_grad_enabled() and x.requires_grad:
            raise ValueError(NOT_TRAINED)
        if x.shape[-1] != self.in_features:
            raise ValueError(f"x has {x.shape[-1]} features, but the layer has {self.in_features} inputs")
        if self._can_serve(x):
            return self._run(x.contiguous(), first, last)
        exact = x.float()
        largest = exact.abs().amax(-1, keepdim=True)
        rounded = (exact * _inverse(largest)).round().to(torch.int8)
        sums = torch._int_mm(rounded.reshape(-1, self.in_features), self._matrix()[first:last].T)
        scaled = sums.view(*x.shape[:-1], last - first) * (largest / _LARGEST * self.scale[first:last])
        return (scaled + self.bias[first:last]).to(x.dtype)

    def rows(self, indices: Int[Tensor, "*lead"]) -> Float[Tensor, "*lead i"]:
        """Return rows of the weight, as an embedding does."""
        # first, because it knows how many there are without the padding; an embedding refuses those below 0
        scale = F.embedding(indices, self.scale[: self.out_features, None])
        if self.weight.dim() == 2:
            rounded = self.weight[indices]
        else:
            rounded = self.weight[indices // _BLOCK, :, indices % _BLOCK].flatten(-2)
        return rounded[..., : self.in_features] * scale

    def train(self, mode: bool = True) -> "Int8Linear":
        """Raise unless the mode is that of evaluation."""
        if mode:
            raise ValueError(NOT_TRAINED)
        return self

    def _save_to_state_dict(self, *_: Any) -> None:
        # rounded weights in a file would pass for the model's
        raise ValueError("weights of eight bits are not saved; save the model that they were made from")

    def extra_repr(self) -> str:
        """Show the sizes in the module's repr."""
        return f"in_features={self.in_features}, out_features={self.out_features}"

    def _can_serve(self, x: Tensor) -> bool:
        return (
            # first: a compiler cannot trace all that follows
            not cpu.is_observed()
            and self.weight.dim() == 4
            and self.weight.is_cpu
            # not after module.to(dtype)
            and self.scale.dtype == torch.float32
            and type(x) is Tensor
            and x.dtype == torch.float32
            and x.is_cpu
            and x.layout == torch.strided
            and not x.is_neg()
        )

    def _run(self, x: Tensor, first: int, last: int) -> Tensor:
        y = torch.empty((*x.shape[:-1], last - first), dtype=x.dtype, device=x.device)
        fields = _LAYOUT.pack(
            x.data_ptr(), self.weight.data_ptr(), self.scale.data_ptr(), self.offset.data_ptr(),
            self.bias.data_ptr(), y.data_ptr(), x.numel() // self.in_features, self.in_features, first, last,
            torch.get_num_threads(),
        )  # fmt: skip
        if build.load().dw_int8_rows(fields):
            raise MemoryError(f"there is no memory for a linear layer of {self.in_features} inputs")
        return y

    def _matrix(self) -> Int[Tensor, "padded i"]:
        matrix = (
            self.weight if self.weight.dim() == 2 else self.weight.transpose(1, 2).flatten(2).flatten(0, 1)
        )
        return matrix[:, : self.in_features]


def _pack(weight: Int[Tensor, "o i"]) -> Int[Tensor, "blocks quads 64 4"]:
    return weight.view(-1, _BLOCK, weight.shape[1] // _QUAD, _QUAD).transpose(1, 2).contiguous()


def _inverse(largest: Tensor) -> Tensor:
    # a division, as in the kernel; number / tensor would multiply by the reciprocal
    return (torch.full_like(largest, _LARGEST) / largest).where(largest > _SMALLEST, 0.0)


@functools.cache
def _has_kernel() -> bool:
    """Tell whether there are compiled kernels and a processor with the instruction that this one needs."""
    return "avx512_vnni" in toolchain.features() and build.ready()
