"""Triton's interpreter, in which kernels run without a GPU. Imported before anything imports them."""

import inspect
import os
from functools import cache

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
try:
    from triton.language.core import is_builtin
    from triton.runtime import interpreter
except ImportError:  # there is no Triton for this system
    interpreter = None


@cache
def builtins_of(place: object) -> list[str]:
    return [name for name, member in inspect.getmembers(place) if is_builtin(member)]


def replace_builtins(place: object, builder: object, scope: object) -> None:
    for name in builtins_of(place):
        if is_builtin(member := getattr(place, name)):
            interpreter._patch_attr(place, name, member, builder, scope)


# It replaces what is built into the language whenever a kernel calls a function, and lists all members each time: a
# third of the time of the kernels' tests.
if interpreter is not None:
    interpreter._patch_builtin = replace_builtins
