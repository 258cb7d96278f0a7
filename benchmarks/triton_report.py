"""Compile the Triton kernels ahead of time, without a GPU, and print what they would use of one.

python benchmarks/triton_report.py
python benchmarks/triton_report.py --target sm_90 --width 64 --json
"""

import argparse
import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from diffwindow.kernels.operator import Call
from diffwindow.kernels.triton import import_failure, interpreted
from diffwindow.kernels.triton_blocks import default_blocks

KERNELS = ("forward", "query", "key")
KINDS = ("multiplicative", "additive")
# What a call asks for: causal attention by token, every option at once, segments longer than a tile, or a
# window with a tolerance and pointers of width 8, as it is, normalised, or normalised with sinks.
OPTIONS = ("plain", "all", "long", "tolerance", "normalised", "sinks")
DTYPES = {"fp16": torch.float16, "fp32": torch.float32}
# the widest heads of each size of blocks
WIDTHS = {"fp16": (64, 128, 256), "fp32": (64, 128)}
POINTERS = {**DTYPES, "u8": torch.uint8, "i64": torch.int64}


class Target(NamedTuple):
    """What a multiprocessor of a GPU has."""

    backend: str
    arch: str | int
    warp: int
    registers: int  # of a lane's 32 bits, in all
    shared: int  # bytes for one program
    shared_in_all: int
    warps: int
    programs: int


TARGETS = {
    "sm_80": Target("cuda", 80, 32, 65536, 163 * 1024, 164 * 1024, 64, 32),
    "sm_90": Target("cuda", 90, 32, 65536, 227 * 1024, 228 * 1024, 64, 32),
    # Four SIMDs of 512 registers per lane; vector and accumulation registers are one file.
    "gfx942": Target("hip", "gfx942", 64, 4 * 512 * 64, 64 * 1024, 64 * 1024, 32, 32),
}


class Entry(NamedTuple):
    """A kernel to compile for one GPU, one kind of window, one width of heads and one type."""

    target: str
    kernel: str
    kind: str
    width: int
    dtype: str
    options: str = "plain"


class Usage(NamedTuple):
    """What a compiled kernel uses.

    Spills are bytes per thread, `matrix_products` run on matrix units, `single_loads` load one 16-bit value.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    registers: int
    shared: int
    spills: int
    occupancy: float
    products: int
    matrix_products: int
    instructions: int
    single_loads: int


def entries(chosen: dict[str, object]) -> list[Entry]:
    """List the kernels whose fields are as chosen; None means any."""
    every = [
        Entry(target, kernel, kind, width, dtype)
        for target in TARGETS
        for dtype, widths in WIDTHS.items()
        for width in widths
        for kind in KINDS
        for kernel in KERNELS
    ]
    asked = {name: value for name, value in chosen.items() if value is not None}
    options = str(asked.pop("options", "plain"))
    return [
        entry._replace(options=options)
        for entry in every
        if asked.items() <= entry._asdict().items()
        and not (options in ("normalised", "sinks") and entry.kind == "additive")
    ]


def measure(entry: Entry) -> Usage:
    """Compile a kernel with its default blocks and read off what it uses."""
    row_bytes = entry.width * DTYPES[entry.dtype].itemsize
    target = TARGETS[entry.target]
    blocks = default_blocks(row_bytes, threshold=example(entry).threshold > 0, amd=target.backend == "hip")
    block = getattr(blocks, entry.kernel)
    compiled, log = compile_kernel(entry, block)
    registers, spills = _registers(compiled, log)
    layouts = dict(re.findall(r"^(#\w+) = #\w+\.(\w+)<", compiled.asm["ttgir"], re.M))
    products = re.findall(r"(?:tt\.dot|warp_group_dot) .*-> tensor<[^>]*, (#\w+)>", compiled.asm["ttgir"])
    assembly = compiled.asm["ptx" if target.backend == "cuda" else "amdgcn"]
    return Usage(
        rows=block.rows,
        keys=block.keys,
        warps=block.warps,
        stages=block.stages,
        registers=registers,
        shared=compiled.metadata.shared,
        spills=spills,
        occupancy=occupancy(target, block.warps, registers, compiled.metadata.shared),
        products=len(products),
        matrix_products=sum("mma" in layouts[name] or "mfma" in layouts[name] for name in products),
        instructions=len(re.findall(r"\bmma\.sync|\bwgmma\.mma_async|\bv_mfma", assembly)),
        single_loads=len(re.findall(r"\bld\.global\.b16|_load_(?:ushort|short_d16|u16|d16)", assembly)),
    )


def kernels() -> dict[str, Any]:
    """Return the kernels by their names here."""
    from diffwindow.kernels import triton_backward, triton_forward

    found = (triton_forward.forward_kernel, triton_backward.query_kernel, triton_backward.key_kernel)
    return dict(zip(KERNELS, found, strict=True))


def compile_kernel(entry: Entry, block: Any) -> tuple[Any, str]:
    """Compile a kernel for a call of long sequences, and return it with the assembler's log."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = kernels()[entry.kernel]
    arguments = _arguments(entry, block)
    signature: dict[str, Any] = {}
    constants: dict[Any, Any] = {}
    attributes: dict[Any, Any] = {}
    for place, parameter in enumerate(kernel.params):
        if parameter.do_not_specialize:
            signature[parameter.name] = "i32"
        else:
            signature[parameter.name] = _type(arguments[parameter.name], (place,), constants, attributes)
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    target = TARGETS[entry.target]
    options = {"num_warps": block.warps, "num_stages": block.stages, "enable_fp_fusion": True}
    with triton.knobs.nvidia.scope(), triton.knobs.compilation.scope(), _captured() as log:
        triton.knobs.nvidia.dump_ptxas_log = True
        triton.knobs.compilation.always_compile = True
        gpu = GPUTarget(target.backend, target.arch, target.warp)
        compiled = triton.compile(source, target=gpu, options=options)
    return compiled, log.getvalue()


@contextlib.contextmanager
def _captured() -> Iterator[io.StringIO]:
    with contextlib.redirect_stdout(io.StringIO()) as log:
        yield log


def _arguments(entry: Entry, block: Any) -> dict[str, Any]:
    """Return the arguments of a kernel as the launcher would pass them, with tensors that have no memory."""
    from diffwindow.kernels import triton_launch

    call = example(entry)
    step = triton_launch.step_of(call.differentiable.values())
    problem, options = triton_launch.describe(call, block, step)
    matrix = triton_launch.matrix(call.q, step)
    local = matrix if entry.kind == "additive" else None
    floats = torch.empty(1, device="meta")
    return {
        "p": problem, "how": options, "out": matrix, "dout": matrix, "statistics": floats,
        "row_totals": floats, "carries": floats, "dq": matrix, "dq_left": matrix, "dq_right": matrix,
        "dq_local": local, "dk": matrix, "dv": matrix, "dk_left": matrix, "dk_right": matrix,
        "dk_local": local, "add": False,
    }  # fmt: skip


def example(entry: Entry) -> Call:
    """Make a call of 2,048 queries and keys."""
    x = torch.empty(2, 8, 2048, entry.width, dtype=DTYPES[entry.dtype], device="meta")
    local = x if entry.kind == "additive" else None
    call = Call(
        q=x, k=x, v=x, q_left=x, k_left=x, q_right=x, k_right=x, q_local=local, k_local=local, attn_mask=None,
        attn_bias=None, segment_origin=None, seed=None, is_causal=True, segment_size=1, exact=False,
        scale=None, dropout_p=0.0, backend="triton",
    )  # fmt: skip
    if entry.options == "plain":
        return call
    if entry.options in ("tolerance", "normalised", "sinks"):
        narrow = x[..., :8]
        return call._replace(
            q_left=narrow, k_left=narrow, q_right=narrow, k_right=narrow, window_tolerance=1e-3,
            normalize=entry.options != "tolerance", sinks=4 if entry.options == "sinks" else 0,
        )  # fmt: skip
    plane = torch.empty(2, 8, 2048, 2048, device="meta")
    integers = torch.empty(2, dtype=torch.int64, device="meta")
    return call._replace(
        attn_mask=plane.bool(), attn_bias=plane, segment_origin=integers, seed=integers, exact=True,
        dropout_p=0.1, segment_size=5 if entry.options == "all" else 150,
    )  # fmt: skip


def _type(value: Any, path: tuple[int, ...], constants: dict[Any, Any], attributes: dict[Any, Any]) -> Any:
    """Name the type of an argument as Triton's launcher does; note what is constant or divisible by 16."""
    from diffwindow.kernels.triton_tiles import Options

    if isinstance(value, tuple) and not isinstance(value, Options):
        parts = [_type(part, (*path, i), constants, attributes) for i, part in enumerate(value)]
        return type(value)(*parts)
    if value is None or isinstance(value, bool | Options) or (isinstance(value, int) and value == 1):
        constants[path] = value
        return "constexpr"
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, torch.Tensor) or value % 16 == 0:
        attributes[path] = [["tt.divisibility", 16]]
    if isinstance(value, torch.Tensor):
        return "*" + next(name for name, dtype in POINTERS.items() if dtype == value.dtype)
    return "i32" if value < 2**31 else "i64"


def _registers(compiled: Any, log: str) -> tuple[int, int]:
    """Return registers per thread and spilled bytes per thread."""
    if "amdgcn" in compiled.asm:
        # Of a kernel's metadata; its registers include those for accumulation.
        found = dict(re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", compiled.asm["amdgcn"]))
        return int(found["vgpr_count"]), 4 * int(found["vgpr_spill_count"])
    registers, stores = re.search(r"Used (\d+) registers", log), re.search(r"(\d+) bytes spill stores", log)
    if registers is None or stores is None:
        raise RuntimeError(
            f"the assembler's log does not say how many registers a kernel uses: {log[:300]!r}"
        )
    return int(registers[1]), int(stores[1])


def occupancy(target: Target, warps: int, registers: int, shared: int) -> float:
    """Return the share of a multiprocessor's warps that can be resident at once."""
    # Registers are given out to a warp in units of eight per thread; a program takes 1 KiB of its own.
    per_program = warps * target.warp * (-(-registers // 8) * 8)
    own = 1024 if target.backend == "cuda" else 0
    programs = min(
        target.registers // per_program,
        target.shared_in_all // (shared + own) if shared + own else target.programs,
        target.warps // warps,
        target.programs,
    )
    return programs * warps / target.warps


def fits(entry: Entry, usage: Usage) -> bool:
    """Say whether a program fits the target's shared memory."""
    return usage.shared <= TARGETS[entry.target].shared


def main(arguments: list[str] | None = None) -> int:
    """Compile what is asked for and print a row each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=TARGETS, help="only this GPU architecture")
    parser.add_argument("--kernel", choices=KERNELS, help="only this kernel")
    parser.add_argument("--kind", choices=KINDS, help="only this kind of window")
    parser.add_argument("--width", type=int, help="only heads of this width")
    parser.add_argument("--type", choices=("fp16", "fp32"), dest="dtype", help="only 16-bit or 32-bit inputs")
    parser.add_argument("--options", choices=OPTIONS, help="what the call asks for, plain unless given")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    chosen = parser.parse_args(arguments)
    if (reason := import_failure()) is not None or interpreted():
        print(f"nothing to compile: {reason or 'TRITON_INTERPRET is set; unset it'}", file=sys.stderr)
        return 1
    wanted = entries({name: getattr(chosen, name) for name in Entry._fields})
    if not wanted:
        parser.error(f"nothing is compiled for --width {chosen.width}; widths are {WIDTHS}")
    if not chosen.json:
        print(
            "target  kernel   kind            width type  rows keys warps stages"
            "  registers  shared  spills  occupancy  products"
        )
    for entry in wanted:
        usage = measure(entry)
        show(entry, usage, as_json=chosen.json)
    return 0


def show(entry: Entry, usage: Usage, *, as_json: bool) -> None:
    """Print an entry."""
    if as_json:
        print(json.dumps({**entry._asdict(), **usage._asdict(), "fits": fits(entry, usage)}), flush=True)
        return
    print(
        f"{entry.target:<8}{entry.kernel:<9}{entry.kind:<16}{entry.width:>5} {entry.dtype:<5}"
        f"{usage.rows:>5}{usage.keys:>5}{usage.warps:>6}{usage.stages:>7}"
        f"{usage.registers:>11}{usage.shared:>8}{usage.spills:>8}{usage.occupancy:>11.2f}"
        f"  {usage.matrix_products}/{usage.products}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
