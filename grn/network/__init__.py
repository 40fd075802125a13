"""Signed gene regulatory networks: read from a model, and written as AnnData and as a table of edges.

`grn.network(...)` is a function, too (grn/api/network.py).
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """This package, which may be called: `import grn.network.weights` makes it what `grn.network` is.

    The function is looked up by name when it is called, as it belongs to a level above this one.
    """

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return _function()(*arguments, **options)

    @property
    def __signature__(self) -> Any:
        from inspect import signature

        return signature(_function())


def _function() -> Any:
    return import_module("grn.api.network").network


sys.modules[__name__].__class__ = _Callable
