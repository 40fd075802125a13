"""Checks of what a fold is given: items of the form that a monoid takes, and results of functions
of one's own.

A form is written as in the docstrings, "(k [M, E], v [M, E]), shared (q [N, E])": letters are
sizes, equal for equal letters, and "..." is any number of axes, equal wherever it stands.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flashsign.attention.validation import check_values, is_whole
from flashsign.errors import ShapeMismatch

Shape = tuple[int, ...]


def check_items(
    name: str, forms: Sequence[str], items: Sequence[Tensor], shared: Sequence[Tensor], axes: int
) -> None:
    """Raise ShapeMismatch unless items and shared tensors are of one of the forms; axes: of bags
    before the others.

    name: of the monoid. Without forms, nothing is known of a monoid's items but that they have
        rows.
    """
    for what, tensors in (("items", items), ("shared tensors", shared)):
        # A single tensor would be taken for a tuple of its rows.
        if not isinstance(tensors, (tuple, list)) or not all(
            isinstance(each, Tensor) for each in tensors
        ):
            raise ShapeMismatch(
                f"{name}: {what} must be a tuple of tensors, as (x,); found "
                f"{type(tensors).__name__}."
            )
    found = (
        f"found items {[list(x.shape) for x in items]} and shared {[list(x.shape) for x in shared]}"
    )
    if any(each.ndim <= axes for each in items):
        raise ShapeMismatch(f"{name} takes items that have an axis of items; {found}.")
    if not forms:
        return
    if len({x.device for x in (*items, *shared)}) > 1 or any(
        x.is_complex() for x in (*items, *shared)
    ):
        kinds = ", ".join(f"{x.dtype} on {x.device}" for x in (*items, *shared))
        raise ShapeMismatch(f"{name} takes real numbers on one device; found {kinds}.")
    own = [tuple(x.shape[axes:]) for x in items], [tuple(x.shape[axes:]) for x in shared]
    fitting = next((form for form in forms if _fits(form, *own)), "")
    if not fitting:
        raise ShapeMismatch(f"{name} takes items {' or '.join(forms)}; {found}.")
    names = re.findall(r"(\w+) \[", fitting)
    for tensor, each in zip(names, (*items, *shared), strict=False):
        if tensor == "multiplicity":
            check_values(tensor, each)
        if tensor in ("target", "classes") and not is_whole(each):
            raise ShapeMismatch(f"{name} takes integers as {tensor}; found {each.dtype}.")
    if names[:2] == ["k", "v"]:
        dtypes = [x.dtype for x in (*shared, *items[:2])]
        if (
            len(
                {
                    torch.promote_types(dtype, torch.float32)
                    for dtype in dtypes
                    if dtype.is_floating_point
                }
            )
            > 1
        ):
            raise ShapeMismatch(
                f"{name} takes q, k and v of one dtype; found {', '.join(map(str, dtypes))}."
            )


@functools.cache
def _letters(form: str) -> tuple[list[list[str]], ...]:
    of_items, _, of_shared = form.partition("shared")
    return tuple(
        [text.replace(" ", "").split(",") for text in re.findall(r"\[(.*?)\]", part)]
        for part in (of_items, of_shared)
    )


def _fits(form: str, items: list[Shape], shared: list[Shape]) -> bool:
    sizes: dict[str, Any] = {}
    return all(
        len(letters) == len(shapes)
        and all(_binds(each, shape, sizes) for each, shape in zip(letters, shapes, strict=True))
        for letters, shapes in zip(_letters(form), (items, shared), strict=True)
    )


def _binds(letters: list[str], shape: Shape, sizes: dict[str, Any]) -> bool:
    """Return whether a shape is what its letters say, as far as their sizes are known; new ones are
    learned.
    """
    whole: list[Any] = list(shape)
    if "..." in letters:
        at, free = letters.index("..."), len(shape) - len(letters) + 1
        if free < 0:
            return False
        whole[at : at + free] = [shape[at : at + free]]
    return len(whole) == len(letters) and all(
        sizes.setdefault(a, size) == size for a, size in zip(letters, whole, strict=True)
    )


def returning_tensors(
    function: Callable[..., Any], what: str, *, like_first: bool = False
) -> Callable[..., Any]:
    """Return the function, whose results are checked: a tuple of tensors, and if like_first shaped
    like its arguments.

    what: the function in messages, "The lift of sums".
    Raises ValueError; a compiler traces no check. One tensor would be taken for a tuple of its
    rows, and a total of another shape would broadcast.
    """
    own = getattr(function, "own_function", function)

    @functools.wraps(own)
    def call(*arguments: Any) -> Any:
        result = own(*arguments)
        if torch.compiler.is_compiling():
            return result
        if not isinstance(result, (tuple, list)) or not all(
            isinstance(each, Tensor) for each in result
        ):
            raise ValueError(
                f"{what} must return a tuple of tensors, as (x,); found {type(result).__name__}."
            )
        # A total of another shape than all totals together would broadcast.
        for parts in (
            zip(result, *arguments, strict=len(result) != len(arguments[0])) if like_first else ()
        ):
            # broadcast_shapes takes long
            if all(part.shape == parts[0].shape for part in parts[1:]):
                continue
            wanted = torch.broadcast_shapes(*(part.shape for part in parts[1:]))
            if parts[0].shape != wanted:
                found = f"found {list(parts[0].shape)} for {list(wanted)}"
                raise ValueError(
                    f"{what} must return tensors shaped like those that it is given; {found}."
                )
        return result

    call.own_function = own  # type: ignore[attr-defined]
    return call


def check_gradients(what: str, grads: Sequence[Tensor | None], of: Sequence[Tensor]) -> None:
    """Raise ValueError unless there is a gradient for each tensor that broadcasts to its shape, or
    None.

    what: the function that returned them, in messages. A compiler traces no check.
    """
    if torch.compiler.is_compiling():
        return
    for grad, tensor in zip(grads, of, strict=True):
        if grad is None or grad.shape == tensor.shape:
            continue
        tail = tensor.shape[max(0, tensor.ndim - grad.ndim) :]
        if grad.ndim > tensor.ndim or not all(
            a in (1, b) for a, b in zip(grad.shape, tail, strict=True)
        ):
            raise ValueError(
                f"{what} must return gradients shaped like the tensors that they are of; found "
                f"{list(grad.shape)} for {list(tensor.shape)}."
            )
