"""What a public function is given, checked by its annotations: a tensor where one is needed, a number where one is."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, distributed

from flashsign.errors import BackendUnavailable, ShapeMismatch

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[str, object], None]


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose arguments are checked first. Raises ShapeMismatch for what is no tensor, else ValueError, and
    TypeError for a call with an argument that the function does not have, or without one that it needs.

    Nothing is looked at on the GPU, and nothing at all while a compiler traces the call.
    """
    signature = inspect.signature(function)
    parameters = {name: each for name, each in signature.parameters.items() if name != "self"}
    checks = {name: check for name, each in parameters.items() if (check := check_of(str(each.annotation)))}
    in_order = [(name, checks.get(name)) for name in signature.parameters]
    rest = next((name for name, each in parameters.items() if each.kind is each.VAR_POSITIONAL), None)
    by_place = [name for name, each in signature.parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    most = math.inf if rest else len(by_place)
    needed = [
        (by_place.index(name) if name in by_place else math.inf, name)
        for name, each in signature.parameters.items()
        if each.default is each.empty and name != rest
    ]
    known = frozenset(parameters)
    public = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.compiler.is_compiling():
            count = len(args)
            if count > most or kwargs.keys() - known or any(at >= count and name not in kwargs for at, name in needed):
                try:
                    signature.bind(*args, **kwargs)
                except TypeError as problem:
                    raise TypeError(_misfit(public, str(problem), parameters, kwargs)) from None
            for (name, check), value in zip(in_order, args, strict=False):
                if check is not None and name != rest:
                    check(name, value)
            for name, value in kwargs.items():
                if name in checks:
                    checks[name](name, value)
            if rest in checks:
                for value in args[len(in_order) - 1 :]:
                    checks[rest](rest, value)
        return function(*args, **kwargs)

    return call


def check_of(annotation: str) -> Check | None:
    """The check of an annotation; None for what a function checks by itself."""
    kind, optional = annotation.removesuffix(" | None"), annotation.endswith(" | None")
    check = _callable if kind.startswith("Callable[") else CHECKS.get(kind)
    return _or_none(check) if check and optional else check


def found(value: object) -> str:
    """A value in a sentence: what numbers and short texts are, and of all else the type."""
    if value is None or isinstance(value, (bool, Real)) or (isinstance(value, str) and len(value) < 60):
        return repr(value)
    return f"of the type {type(value).__name__}"


def dense_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise ShapeMismatch(f"{name} must be a tensor; found {type(value).__name__}, {_how_to_get_one(value)}.")
    if value.is_nested:
        raise ShapeMismatch(
            f"{name} must be a dense tensor; found a nested one, pad it or pass packed rows with offsets."
        )
    if value.layout is not torch.strided:
        raise ShapeMismatch(f"{name} must be a dense tensor; found {value.layout}, make one with {name}.to_dense().")


def _how_to_get_one(value: object) -> str:
    """What makes a tensor of a value that is none: torch.as_tensor where it can, which is tried."""
    if isinstance(value, torch.nn.Module):
        return "pass its parameter, as layer.weight"
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, Tensor) for each in value):
        return f"join its tensors with {'torch.stack' if len({x.shape for x in value}) == 1 else 'torch.cat'}"
    for method in ("to_numpy", "toarray"):  # of pandas, of scipy.sparse
        if hasattr(value, method):
            return f"make one with torch.as_tensor and its {method}()"
    try:
        torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return "pass one"
    return "make one with torch.as_tensor"


def tensors(name: str, value: object) -> None:
    if not isinstance(value, (tuple, list)):
        raise ShapeMismatch(f"{name} must be a tuple of tensors, as (x,); found {type(value).__name__}.")
    for number, each in enumerate(value):
        dense_tensor(f"{name}[{number}]", each)


def callable_or_none(name: str, value: object) -> None:
    if value is not None:
        _callable(name, value)


def _callable(name: str, value: object) -> None:
    if not callable(value):
        raise ValueError(f"{name} must be a function, not {found(value)}.")


def _number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {found(value)}.")
    if name in ("eps", "tolerance") and value < 0:
        raise ValueError(f"{name} must be at least 0, not {value!r}.")


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be a whole number, not {found(value)}.")
    if value < LEAST.get(name, value):
        raise ValueError(f"{name} must be at least {LEAST[name]}, not {value!r}.")


def _instance_of(kind: type, words: str) -> Check:
    """A check for a class of Python. words: what is wanted, in messages."""

    def check(name: str, value: object) -> None:
        if not isinstance(value, kind):
            raise ValueError(f"{name} must be {words}, not {found(value)}.")

    return check


def _count_or_range(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (Integral, range)):
        raise ShapeMismatch(f"{name} must be a number or a range of step 1; found {found(value)}.")
    if isinstance(value, Integral):
        _whole(name, value)


def _floating(name: str, value: object) -> None:
    if not isinstance(value, torch.dtype) or not value.is_floating_point:
        shown = value if isinstance(value, torch.dtype) else found(value)
        raise ValueError(f"{name} must be a floating dtype of torch, as torch.float32, not {shown}.")


def _device(name: str, value: object) -> None:
    if value is None:
        return
    try:
        device = torch.device(value)  # type: ignore[call-overload]
    except (RuntimeError, TypeError):
        raise ValueError(f"{name} must be a device of torch, as 'cpu' or 'cuda:0', not {found(value)}.") from None
    there = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= there:
        raise BackendUnavailable(f"{name} is {str(device)!r}, and torch finds {there} CUDA devices: name another.")


def _group(name: str, value: object) -> None:
    outside = distributed.GroupMember.NON_GROUP_MEMBER  # what torch gives a process that is not in the group
    if not isinstance(value, distributed.ProcessGroup) and value is not outside:
        raise ValueError(f"{name} must be a process group of torch.distributed, not {found(value)}.")


def _pair(name: str, value: object) -> None:
    whole = isinstance(value, (tuple, list)) and all(isinstance(x, int) and x >= 0 for x in value)
    if not whole or len(value) != 2:  # type: ignore[arg-type]
        raise ValueError(f"{name} must be two whole numbers of at least 0, not {value!r}.")


def _shape(name: str, value: object) -> None:
    if not isinstance(value, (tuple, list)):
        raise ShapeMismatch(f"{name} must be a shape, as q.shape; found {found(value).removeprefix('of ')}.")


def _a(kind: str, example: str) -> Check:
    """A check for a class of flashsign, by its name: its module may import this one."""

    def check(name: str, value: object) -> None:
        if not any(each.__name__ == kind for each in type(value).__mro__):
            raise ValueError(f"{name} must be {example}, not {found(value)}.")

    return check


def _or_none(check: Check) -> Check:
    def checked_unless_none(name: str, value: object) -> None:
        if value is not None:
            check(name, value)

    return checked_unless_none


def _device_or_facts(name: str, value: object) -> None:
    if isinstance(value, torch.device):
        _device(name, value)
    elif type(value).__name__ != "Device":  # flashsign.dispatch imports this module
        raise ValueError(
            f'{name} must be a torch.device or facts, as Device("cuda", (9, 0), "3.6.0"), not {found(value)}.'
        )


def _misfit(function: str, problem: str, parameters: Mapping[str, inspect.Parameter], given: Iterable[str]) -> str:
    """A sentence about a call that does not fit its function. problem: what Python says of it."""
    unknown = [name for name in given if name not in parameters]
    by_name = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
    if not unknown and problem.startswith("too many") and by_name:
        without = ", ".join(name for name in parameters if name not in by_name)
        words = ", ".join(f"{name}=..." for name in by_name)
        return f"{function}: {problem}; {without} may stand without a name, all else has one: {words}."
    if not unknown:
        advice = "give it" if problem.startswith("missing") else f"it takes {', '.join(parameters)}"
        return f"{function}: {problem}; {advice}."
    near = difflib.get_close_matches(unknown[0], list(parameters), n=1)
    hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(parameters)}."
    return f"{function} has no argument {unknown[0]}; {hint}"


LEAST = {
    "a_chunk": 1,
    "b_chunk": 1,
    "row_chunk": 1,
    "class_chunk": 1,
    "hidden_chunk": 1,
    "chunk": 1,
    "rows": 1,
    "of_a": 1,
    "k": 0,
    "targets": 0,
    "regulators": 0,
    "classes": 0,
}
"""The least of whole numbers by the names of arguments, which mean the same wherever they occur."""

OPTIONS = {
    "Method": "auto, stream or moments",
    "Backend": "auto, triton or torch",
    "FoldBackend": "auto, triton or torch",
    "Reduction": "none, sum or mean",
    "Normaliser": "spherical, l1, squared_relu or softmax",
    "Activation": "gelu, silu or relu",
    "Over": "pairs or targets",
    "By": "absolute or signed",
    "Literal['auto'] | Order": "auto, rows, items or tree",
}
"""Annotations of texts that functions choose from, and these texts; functions check by themselves which one it is."""

CHECKS: dict[str, Check] = {
    "function": _callable,
    "Tensor": dense_tensor,
    "Total": tensors,
    "float": _number,
    "int": _whole,
    "bool": _instance_of(bool, "True or False"),
    "str": _instance_of(str, "a text"),
    "slice": _instance_of(slice, "a slice, as slice(0, 10)"),
    "int | range": _count_or_range,
    "tuple[int, int]": _pair,
    "Sequence[int]": _shape,
    "torch.dtype": _floating,
    "torch.device | str": _device,
    "distributed.ProcessGroup": _group,
    "Monoid": _a("Monoid", "a Monoid, as flashsign.SUM"),
    "NAryFold": _a("NAryFold", "an NAryFold"),
    "Fold": _a("Fold", "another Fold"),
    **{annotation: _instance_of(str, texts) for annotation, texts in OPTIONS.items()},
    "Device | torch.device": _device_or_facts,
    "EdgeSums": _a("EdgeSums", "other EdgeSums"),
}
