"""What a fold is given by its caller: items of the form that a monoid takes, and what functions of one's own return.

A form is written as in the docstrings, "(k [M, E], v [M, E]), shared (q [N, E])": letters are sizes, equal for equal
letters, and "..." is any number of axes, equal wherever it stands.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flashsign.errors import ShapeMismatch
from flashsign.validation import check_values, is_whole

Shape = tuple[int, ...]


def check_items(name: str, forms: Sequence[str], items: Sequence[Tensor], shared: Sequence[Tensor], axes: int) -> None:
    """Raises ShapeMismatch unless items and shared tensors are of one of the forms; axes: of bags before the others.

    name: of the monoid. Without forms, nothing is known of a monoid's items but that they have rows.
    """
    for number, each in enumerate(items):
        if each.ndim <= axes:
            raise ShapeMismatch(f"items[{number}] must have an axis of items; found {list(each.shape)}, one number.")
    if forms and (len({x.device for x in (*items, *shared)}) > 1 or any(x.is_complex() for x in (*items, *shared))):
        kinds = ", ".join(f"{x.dtype} on {x.device}" for x in (*items, *shared))
        raise ShapeMismatch(f"{name} takes real numbers on one device; found {kinds}.")
    for tensor, each in zip(_names(forms[0]) if forms else (), items, strict=False):
        if tensor == "multiplicity":
            check_values(tensor, each)
    own = [tuple(x.shape[axes:]) for x in items], [tuple(x.shape[axes:]) for x in shared]
    fitting = next((form for form in forms if _fits(form, *own)), "")
    if forms and not fitting:
        raise ShapeMismatch(
            f"{name} takes items {' or '.join(forms)}; found items {[list(x.shape) for x in items]} and shared "
            f"{[list(x.shape) for x in shared]}."
        )
    for tensor, each in zip(_names(fitting), (*items, *shared), strict=False):
        if tensor in ("target", "classes") and not is_whole(each):
            raise ShapeMismatch(f"{name} takes integers as {tensor}; found {each.dtype}.")
    if forms and _names(forms[0])[:2] == ["k", "v"]:
        dtypes = [x.dtype for x in (*shared, *items[:2])]
        if len({torch.promote_types(dtype, torch.float32) for dtype in dtypes if dtype.is_floating_point}) > 1:
            raise ShapeMismatch(f"{name} takes q, k and v of one dtype; found {', '.join(map(str, dtypes))}.")


@functools.cache
def _names(form: str) -> list[str]:
    """The names of the tensors of a form, items first."""
    return re.findall(r"(\w+) \[", form)


@functools.cache
def _letters(form: str) -> tuple[list[list[str]], ...]:
    """The letters of every tensor of a form, of items and of shared ones."""
    of_items, _, of_shared = form.partition("shared")
    return tuple(
        [text.replace(" ", "").split(",") for text in re.findall(r"\[(.*?)\]", part)] for part in (of_items, of_shared)
    )


def _fits(form: str, items: list[Shape], shared: list[Shape]) -> bool:
    sizes: dict[str, Any] = {}
    return all(
        len(letters) == len(shapes)
        and all(_binds(each, shape, sizes) for each, shape in zip(letters, shapes, strict=True))
        for letters, shapes in zip(_letters(form), (items, shared), strict=True)
    )


def _binds(letters: list[str], shape: Shape, sizes: dict[str, Any]) -> bool:
    """Whether a shape is what its letters say, as far as their sizes are known; new ones are learned."""
    if "..." in letters:
        at, free = letters.index("..."), len(shape) - len(letters) + 1
        if free < 0:
            return False
        whole: list[Any] = [*shape[:at], shape[at : at + free], *shape[at + free :]]
    else:
        whole = list(shape)
    return len(whole) == len(letters) and all(
        sizes.setdefault(a, size) == size for a, size in zip(letters, whole, strict=True)
    )


def returning_tensors(function: Callable[..., Any], what: str, *, like_first: bool = False) -> Callable[..., Any]:
    """The function, whose results are checked: a tuple of tensors, as many as the first argument has if like_first.

    what: the function in messages, "The lift of sums". A wrong result raises ValueError; a compiler traces no check.
    """
    own = getattr(function, "own_function", function)

    @functools.wraps(own)
    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return own(*arguments)
        try:
            result = own(*arguments)
        except TypeError:
            refuse_other_arity(own, what, len(arguments))
            raise
        if not isinstance(result, (tuple, list)) or not all(isinstance(each, Tensor) for each in result):
            kind = type(result).__name__
            if isinstance(result, (tuple, list)):
                kind += f" of {', '.join(type(each).__name__ for each in result)}"
            raise ValueError(f"{what} must return a tuple of tensors, as (x,); found {kind}.")
        if like_first:
            _refuse_other_shapes(what, result, arguments)
        return result

    call.own_function = own  # type: ignore[attr-defined]
    return call


def refuse_other_arity(function: Callable[..., Any], what: str, count: int) -> None:
    """Raises ValueError where a function cannot be called with so many arguments; what: the function in messages."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a builtin
        return
    try:
        signature.bind(*[None] * count)
    except TypeError:
        raise ValueError(
            f"{what} is called with {count} argument{'s' * (count != 1)}, and it takes {signature}."
        ) from None


def check_gradients(what: str, grads: Sequence[Tensor | None], of: Sequence[Tensor]) -> None:
    """Raises ValueError unless there is a gradient for each tensor that broadcasts to its shape, or None.

    what: the function that returned them, in messages. A compiler traces no check.
    """
    if torch.compiler.is_compiling():
        return
    if len(grads) != len(of):
        raise ValueError(f"{what} must return a gradient for each of {len(of)} tensors; found {len(grads)}.")
    for number, (grad, tensor) in enumerate(zip(grads, of, strict=True)):
        if grad is not None and grad.shape != tensor.shape and not _broadcasts(grad.shape, tensor.shape):
            raise ValueError(
                f"{what} must return gradients shaped like the tensors that they are of; found {list(grad.shape)} for "
                f"{list(tensor.shape)} in place {number}."
            )


def _broadcasts(shape: Shape, wanted: Shape) -> bool:
    tail = wanted[len(wanted) - len(shape) :]
    return len(shape) <= len(wanted) and all(a in (1, b) for a, b in zip(shape, tail, strict=True))


def _refuse_other_shapes(what: str, result: Sequence[Tensor], totals: Sequence[Sequence[Tensor]]) -> None:
    """Raises ValueError unless the result is a total of the shapes of all totals together."""
    if len(result) != len(totals[0]):
        raise ValueError(
            f"{what} must return as many tensors as it is given; found {len(result)} for {len(totals[0])}."
        )
    for number, parts in enumerate(zip(result, *totals, strict=False)):
        if all(part.shape == parts[0].shape for part in parts[1:]):  # broadcast_shapes takes long
            continue
        try:
            wanted = torch.broadcast_shapes(*(part.shape for part in parts[1:]))  # type: ignore[no-untyped-call]
        except RuntimeError:  # what it was given does not fit together, which is another function's fault
            continue
        if parts[0].shape != wanted:
            raise ValueError(
                f"{what} must return tensors shaped like those that it is given; found {list(parts[0].shape)} for "
                f"{list(wanted)} in place {number}."
            )


def returning_a_tensor(function: Callable[..., Any], what: str) -> Callable[..., Tensor]:
    """The same for a function that returns one tensor."""
    own = getattr(function, "own_function", function)

    @functools.wraps(own)
    def call(*arguments: Any) -> Tensor:
        result: Tensor
        if torch.compiler.is_compiling():
            result = own(*arguments)
            return result
        try:
            result = own(*arguments)
        except TypeError:
            refuse_other_arity(own, what, len(arguments))
            raise
        if not isinstance(result, Tensor):
            raise ValueError(f"{what} must return a tensor; found {type(result).__name__}.")
        return result

    call.own_function = own  # type: ignore[attr-defined]
    return call
