"""What a bug report should say about the machine: versions, processor, compiler, state of the kernels."""

import ctypes
import platform
from pathlib import Path

import torch

from diffwindow.kernels import build, toolchain, triton

# Instruction sets that change how fast the kernels are.
FEATURES = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")


def report() -> dict[str, str]:
    """Describe this machine to a reader, building the kernels if need be."""
    has = [name for name in FEATURES if name in toolchain.features()]
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": f"{platform.machine()}, {', '.join(has) or 'no vector extension that we know'}",
        "threads": str(torch.get_num_threads()),
        "compiler": _compiler(),
        "DIFFWINDOW_KERNELS": build.mode(),
        "CPU kernels": status(),
        "Triton kernels": triton.status(),
    }


def status() -> str:
    """Say which compiled kernels are loaded and on how many threads they run, or why there are none."""
    try:
        library = build.load()
    except toolchain.KernelsUnavailableError as error:
        return f"unavailable: {error}"
    threads = library.dw_count_threads(ctypes.c_int64(torch.get_num_threads()))
    origin = (
        "from the package" if build.PACKAGED in Path(library._name).parents else "compiled on this machine"
    )
    return f"ready on {threads} thread{'s' * (threads != 1)}, {origin}: {library._name}"


def _compiler() -> str:
    try:
        command = toolchain.compiler()
    except toolchain.KernelsUnavailableError as error:
        return str(error)
    return f"{' '.join(command)} ({toolchain.compiler_version(command)})" if command else "none found"
