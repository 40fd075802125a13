"""The n-ary form of a fold: any tensors, cut by a function of one's own instead of into rows A x items B.

For folds whose slices are not blocks of two tensors, such as rows that see a window of items only.
Source: MonoidReduce, A. Cuba Gyllensten, 2025; kernels/README.md, "Folds".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from flashsign.algebra.forms import check_gradients, returning_tensors
from flashsign.algebra.monoid import Gradients, Total
from flashsign.arguments import CHECKS, checked
from flashsign.eager.transforms import in_batches, transformed

ONE_DERIVATIVE = (
    "An n-ary fold can be differentiated once, in reverse, because only that derivative is given (proj_fold_bwd): for "
    "others, write it as a Monoid with a lift."
)


@dataclass(frozen=True)
class NAryFold:
    """A fold given by its slices.

    init(*x): the identity, one tensor for each of the total, in its final shape.
    chunker(*x) -> (aslice, xslice) for every slice: aslice has an index into each tensor of the total, xslice one into
        each of x, as in x[index]; indices are made of slices and integers, so that they give views.
    proj_fold(x): the total of a slice, shaped like that part of the total; x: its tensors.
    binary_reduce(p, q): the total of both; it commutes.
    proj_fold_bwd(x, a, ga): the slice's part of the gradients for x, where a and ga are that part of the final total
        and of its gradient. None for integers.

    Raises ValueError for a field that is no function; n_ary_reduce raises it where one returns another kind.

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
        for field in ("init", "chunker", "proj_fold", "binary_reduce", "proj_fold_bwd"):
            CHECKS["function"](field, getattr(self, field))
        for field in ("init", "proj_fold", "binary_reduce"):
            own = returning_tensors(
                getattr(self, field), f"{field} of an NAryFold", like_first=field == "binary_reduce"
            )
            object.__setattr__(self, field, own)


@checked
def n_ary_reduce(form: NAryFold, *x: Tensor) -> Total:
    """The total of all slices, tensors [...] as form.init makes them. Memory: x, the total and one slice.

    Differentiable once, in reverse; other derivatives raise NotImplementedError. Raises ShapeMismatch for what is no
    tensor, ValueError where a function of the form returns no tensors, or the chunker no slices.
    Source: MonoidReduce, A. Cuba Gyllensten, 2025.

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
            shapes = [[list(part.shape) for part in parts] for parts in (both, here)]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"binary_reduce of an NAryFold gave tensors shaped {shapes[0]} for a part of the total shaped "
                    f"{shapes[1]}; proj_fold must give totals of the shape of that part."
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
            found = form.proj_fold_bwd(_at(x, xslice), _at(total, aslice), _at(grads, aslice))
            if not isinstance(found, (tuple, list)) or len(found) != len(x):
                raise ValueError(
                    f"proj_fold_bwd of an NAryFold must return a gradient for each of {len(x)} tensors; found "
                    f"{type(found).__name__}."
                )
            check_gradients("proj_fold_bwd of an NAryFold", found, _at(x, xslice))
            for whole, index, grad in zip(sums, xslice, found, strict=True):
                if whole is not None and grad is not None:
                    whole[index].add_(grad)
        return None, *(None if s is None else s.to(part.dtype) for s, part in zip(sums, x, strict=True))


def _slices(form: NAryFold, total: Total, x: Total) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """The chunker's slices. Raises ValueError where it returns anything else."""
    slices = form.chunker(*x)
    if not isinstance(slices, Iterable):
        raise ValueError(f"chunker of an NAryFold must return slices; found {type(slices).__name__}.")
    for each in slices:
        pair = (
            isinstance(each, (tuple, list)) and len(each) == 2 and all(isinstance(one, (tuple, list)) for one in each)
        )
        if not pair or [len(one) for one in each] != [len(total), len(x)]:
            raise ValueError(
                f"chunker of an NAryFold must give pairs (aslice, xslice), with an index into each of {len(total)} "
                f"totals and each of {len(x)} tensors; found {each!r}."
            )
        for index in (*each[0], *each[1]):
            if not all(_gives_a_view(part) for part in (index if isinstance(index, tuple) else (index,))):
                raise ValueError(
                    f"chunker of an NAryFold must give indices made of slices and integers; found {index!r}."
                )
        yield tuple(each[0]), tuple(each[1])


def _gives_a_view(index: object) -> bool:
    """Whether what is written to x[index] arrives in x: indices that are tensors or lists give copies."""
    return index is None or index is ... or (isinstance(index, (Integral, slice)) and not isinstance(index, bool))


def _at(tensors: Total, indices: tuple[Any, ...]) -> Total:
    return tuple(_part(x, index) for x, index in zip(tensors, indices, strict=True))


def _part(x: Tensor, index: Any) -> Tensor:
    try:
        return x[index]
    except (IndexError, TypeError, ValueError) as problem:
        raise ValueError(
            f"chunker of an NAryFold gave the index {index!r} into a tensor {list(x.shape)}, which torch refuses "
            f"({str(problem).splitlines()[0]}); give slices and integers inside of it."
        ) from None
