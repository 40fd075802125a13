"""The n-ary form of a fold: any tensors, cut by a function of one's own instead of into rows A x
items B.

For folds whose slices are not blocks of two tensors, such as rows that see a window of items only.
Source: MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashsign.eager.transforms import in_batches, transformed
from flashsign.folds.algebra.forms import check_gradients, returning_tensors
from flashsign.folds.algebra.monoid import Gradients, Total

ONE_DERIVATIVE = (
    "An n-ary fold can be differentiated once, in reverse, because only that derivative is given "
    "(proj_fold_bwd): for others, write it as a Monoid with a lift."
)


@dataclass(frozen=True)
class NAryFold:
    """A fold given by its slices.

    init(*x): the identity, one tensor for each of the total, in its final shape.
    chunker(*x) -> (aslice, xslice) for every slice: aslice has an index into each tensor of the
        total, xslice one into each of x, as in x[index]; indices are made of slices and integers,
        so that they give views.
    proj_fold(x): the total of a slice, shaped like that part of the total; x: its tensors.
    binary_reduce(p, q): the total of both; it commutes.
    proj_fold_bwd(x, a, ga): the slice's part of the gradients for x, where a and ga are that part
        of the final total and of its gradient. None for integers.

    Example: sums over a window of three, whose slices overlap.
        >>> import torch
        >>> from flashsign import NAryFold, n_ary_reduce
        >>> def chunker(x):
        ...     for i in range(len(x)):
        ...         yield (slice(i, i + 1),), (slice(max(0, i - 1), i + 2),)
        >>> windows = NAryFold(
        ...     init=lambda x: (torch.zeros_like(x),),
        ...     chunker=chunker,
        ...     proj_fold=lambda x: (x[0].sum(0, keepdim=True),),
        ...     binary_reduce=lambda p, q: (p[0] + q[0],),
        ...     proj_fold_bwd=lambda x, a, ga: (ga[0].expand_as(x[0]),),
        ... )
        >>> n_ary_reduce(windows, torch.tensor([1.0, 2.0, 3.0, 4.0]))
        (tensor([3., 6., 9., 7.]),)
    """

    init: Callable[..., Total]
    chunker: Callable[..., Iterable[tuple[tuple[Any, ...], tuple[Any, ...]]]]
    proj_fold: Callable[[Total], Total]
    binary_reduce: Callable[[Total, Total], Total]
    proj_fold_bwd: Callable[[Total, Total, Total], Gradients]

    def __post_init__(self) -> None:
        for field in ("init", "proj_fold", "binary_reduce"):
            own = returning_tensors(
                getattr(self, field), f"{field} of an NAryFold", like_first=field == "binary_reduce"
            )
            object.__setattr__(self, field, own)


def n_ary_reduce(form: NAryFold, *x: Tensor) -> Total:
    """Return the total of all slices, tensors [...] as form.init makes them.

    Memory: x, the total and one slice.

    Differentiable once, in reverse; other derivatives raise NotImplementedError.
    Raises ValueError where a function of the form returns tensors of other shapes, or the chunker
    an index that gives a copy.
    Source: MonoidReduce, A. Cuba Gyllensten, 2025 (its code, github.com/joenaess/GeMMMapReduce, has
        this form).

    Example: a mean of squares [1] in two slices.
        >>> import torch
        >>> from flashsign import NAryFold, n_ary_reduce
        >>> squares = NAryFold(
        ...     init=lambda x: (x.new_zeros(1),),
        ...     chunker=lambda x: [((slice(None),), (slice(at, at + 2),)) for at in (0, 2)],
        ...     proj_fold=lambda x: (x[0].square().sum(0, keepdim=True),),
        ...     binary_reduce=lambda p, q: (p[0] + q[0],),
        ...     proj_fold_bwd=lambda x, a, ga: (2 * x[0] * ga[0],),
        ... )
        >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
        >>> (n_ary_reduce(squares, x)[0] / 4).sum().backward()
        >>> x.grad
        tensor([0.5000, 1.0000, 1.5000, 2.0000])
    """
    if transformed():
        raise NotImplementedError(ONE_DERIVATIVE)
    total: Total = _NAry.apply(form, *x)  # type: ignore[no-untyped-call]
    return total


class _NAry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: NAryFold, *x: Tensor) -> Total:
        total = tuple(part.clone() for part in form.init(*x))
        for aslice, xslice in _slices(form, total, x):
            here = _at(total, aslice)
            both = form.binary_reduce(here, form.proj_fold(_at(x, xslice)))
            # copy_ would broadcast
            if [part.shape for part in both] != [part.shape for part in here]:
                raise ValueError(
                    "proj_fold of an NAryFold must return tensors shaped like their part of the "
                    "total."
                )
            for part, new in zip(here, both, strict=True):
                part.copy_(new)
        ctx.save_for_backward(*x, *total)
        ctx.form, ctx.inputs = form, len(x)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() or transformed() or any(map(in_batches, grads)):
            raise NotImplementedError(ONE_DERIVATIVE)
        form, saved = ctx.form, ctx.saved_tensors
        x, total = saved[: ctx.inputs], saved[ctx.inputs :]
        wide = (torch.promote_types(part.dtype, torch.float32) for part in x)
        wanted = ctx.needs_input_grad[1:]
        sums = [
            torch.zeros(part.shape, dtype=dtype, device=part.device) if want else None
            for part, dtype, want in zip(x, wide, wanted, strict=True)
        ]
        for aslice, xslice in _slices(form, total, x):
            gradients = form.proj_fold_bwd(_at(x, xslice), _at(total, aslice), _at(grads, aslice))
            check_gradients("proj_fold_bwd of an NAryFold", gradients, _at(x, xslice))
            for whole, index, grad in zip(sums, xslice, gradients, strict=True):
                if whole is not None and grad is not None:
                    whole[index].add_(grad)
        return None, *(
            None if s is None else s.to(part.dtype) for s, part in zip(sums, x, strict=True)
        )


def _slices(
    form: NAryFold, total: Total, x: Total
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Return the chunker's slices.

    Raises ValueError for an index whose result is a copy, to which writing has no effect.
    """
    for aslice, xslice in form.chunker(*x):
        for index in (*aslice, *xslice):
            parts = index if isinstance(index, tuple) else (index,)
            if any(
                isinstance(part, bool) or not isinstance(part, (int, slice, type(...), type(None)))
                for part in parts
            ):
                raise ValueError(
                    "chunker of an NAryFold must give slices and integers as indices; found "
                    f"{index!r}."
                )
        yield tuple(aslice), tuple(xslice)


def _at(tensors: Total, indices: tuple[Any, ...]) -> Total:
    return tuple(x[index] for x, index in zip(tensors, indices, strict=True))
