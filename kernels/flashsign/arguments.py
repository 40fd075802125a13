"""What a public function is given, checked by its annotations: a tensor where one is needed, a number where one is."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from flashsign.errors import ShapeMismatch

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[str, object], None]


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose arguments are checked first. Raises ShapeMismatch for what is no tensor, else ValueError.

    Nothing is looked at on the GPU, and nothing at all while a compiler traces the call.
    """
    parameters = inspect.signature(function).parameters
    checks = {
        name: CHECKS[str(each.annotation)]
        for name, each in parameters.items()
        if str(each.annotation) in CHECKS and each.kind is not each.VAR_POSITIONAL
    }
    in_order = [(name, checks.get(name)) for name in parameters]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.compiler.is_compiling():
            for (name, check), value in zip(in_order, args, strict=False):
                if check is not None:
                    check(name, value)
            for name, value in kwargs.items():
                if name in checks:
                    checks[name](name, value)
        return function(*args, **kwargs)

    return call


def _tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise ShapeMismatch(f"{name} must be a tensor; found {type(value).__name__}, make one with torch.as_tensor.")
    if value.layout is not torch.strided:
        raise ShapeMismatch(f"{name} must be a dense tensor; found {value.layout}, make one with {name}.to_dense().")


def _number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value!r}.")
    if name == "eps" and value < 0:
        raise ValueError(f"eps must be at least 0, not {value!r}.")


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be a whole number, not {value!r}.")


def _monoid(name: str, value: object) -> None:
    if not any(each.__name__ == "Monoid" for each in type(value).__mro__):
        raise ValueError(f"{name} must be a Monoid, as flashsign.SUM, not {value!r}.")


def _or_none(check: Check) -> Check:
    def checked_unless_none(name: str, value: object) -> None:
        if value is not None:
            check(name, value)

    return checked_unless_none


CHECKS: dict[str, Check] = {"Tensor": _tensor, "float": _number, "int": _whole, "Monoid": _monoid}
CHECKS |= {f"{annotation} | None": _or_none(check) for annotation, check in CHECKS.items()}
