"""When a kernel may be called directly, without an operator that torch knows."""

import torch
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad


def observed() -> bool:
    """Tell whether something that compiles, traces or transforms calls wants to see each operator."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )
