"""Checks of what a fold is given: tuples of tensors with an axis of items, and results of functions
of one's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flashsign.errors import ShapeMismatch


def check_items(name: str, items: Sequence[Tensor], shared: Sequence[Tensor], axes: int) -> None:
    """Raise ShapeMismatch unless items and shared are tuples of tensors, and items have as many
    rows each, behind `axes` axes of bags.

    name: of the monoid.
    """
    for what, tensors in (("items", items), ("shared tensors", shared)):
        # A single tensor would be taken for a tuple of its rows.
        if not are_tensors(tensors):
            raise ShapeMismatch(
                f"{name}: {what} must be a tuple of tensors, as (x,); found "
                f"{type(tensors).__name__}."
            )
    if any(x.ndim <= axes for x in items) or len({x.shape[axes] for x in items}) != 1:
        raise ShapeMismatch(
            f"{name} takes items that have an axis of items of one length; found "
            f"{[list(x.shape) for x in items]}."
        )


def are_tensors(found: object) -> bool:
    """Return whether something is a tuple or list of tensors."""
    return isinstance(found, (tuple, list)) and all(isinstance(each, Tensor) for each in found)


def returning_tensors(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Return the function, whose results are checked to be a tuple of tensors.

    what: the function in messages, "The lift of sums".
    Raises ValueError; a compiler traces no check. One tensor would be taken for a tuple of its
    rows.
    """
    own = getattr(function, "own_function", function)

    @functools.wraps(own)
    def call(*arguments: Any) -> Any:
        result = own(*arguments)
        if not torch.compiler.is_compiling() and not are_tensors(result):
            raise ValueError(
                f"{what} must return a tuple of tensors, as (x,); found {type(result).__name__}."
            )
        return result

    call.own_function = own  # type: ignore[attr-defined]
    return call
