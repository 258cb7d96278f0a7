"""What a bug report should say of the machine: versions, processor, compiler and the state of the kernels."""

import platform

import torch

from diffwindow.kernels import build

# Instruction sets that change how fast the kernels are.
FEATURES = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")


def report() -> dict[str, str]:
    """Describe this machine to a reader, building the kernels if need be."""
    found = build.compiler()
    has = [name for name in FEATURES if name in build.cpu_features()]
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": f"{platform.machine()}, {', '.join(has) or 'no vector extension that we know'}",
        "threads": str(torch.get_num_threads()),
        "compiler": f"{found} ({build.compiler_version(found)})" if found else "none found",
        "DIFFWINDOW_KERNELS": build.mode(),
        "CPU kernels": status(),
    }


def status() -> str:
    """Say whether the compiled kernels are at hand, and if not, why."""
    try:
        library = build.load()
    except build.KernelsUnavailableError as error:
        return f"unavailable: {error}"
    return f"ready: {library._name}"
