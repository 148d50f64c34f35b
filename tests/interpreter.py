"""Triton's interpreter, started once."""

import functools
import types


@functools.cache
def start_once():
    """Has the interpreter put NumPy in place of Triton's language once for the process.

    By itself it does so at every call of a function in a kernel, which takes most of its time.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter._patch_lang(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda function: interpreter._LangPatchScope()
