"""Make Triton's interpreter fast enough for tests."""

import functools
import types

import triton.language as tl
from triton.runtime import interpreter


@functools.cache
def patch_once() -> None:
    """Let it replace Triton's language once for good: it does so again at each call of a function."""
    both = {"tl": tl, "core": tl.core}
    interpreter._patch_lang(types.FunctionType((lambda: None).__code__, both))
    interpreter._patch_lang = lambda fn: interpreter._LangPatchScope()
