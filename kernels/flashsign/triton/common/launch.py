"""Launching a kernel: arguments by name, checked when it is compiled, and a fast look-up of
compiled kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from flashsign.triton.common.layout import UncheckedDescriptor
from flashsign.tuning.device import capability

# Compiled kernels are launched without Triton only in releases where that was seen working: what
# they take may change.
FAST_LAUNCH = triton.__version__.startswith(("3.6.", "3.7.")) and torch.version.hip is None
FUSED = {"enable_fp_fusion": True}
"""A product and a sum in one instruction: what releases of Triton do unless they are asked, but not
from 3.10 on.
"""
MOST_COMPILED = 4096
"""The table of compiled kernels is emptied when it has so many entries."""
_COMPILED: dict[tuple[Hashable, ...], Any] = {}


def start(
    kernel: Any,
    grid: tuple[int, ...],
    *,
    tensors: dict[str, Any],
    numbers: Mapping[str, int | float],
    constants: dict[str, int | str | bool | None],
    **options: int,
) -> None:
    """Launch kernel[grid](**tensors, **numbers, **constants, **options), in the order of the
    kernel's signature.

    tensors: Tensor, UncheckedDescriptor or None. Names are checked when the kernel is compiled;
        later launches pass the values by position.
    Raises TypeError that says which argument is missing, unknown or out of order.

    At every launch Triton determines anew which compiled kernel its arguments need: by their types,
    by 16-byte alignment, and by which integers are 1 or multiples of 16. That takes longer than a
    whole call of torch's scaled_dot_product_attention. So a table holds the compiled kernels, by
    the very numbers of a call (`call`) and by what Triton distinguishes of them (`form`).
    """
    arguments, sizes, fixed = tensors.values(), numbers.values(), constants.values()
    first = next(iter(arguments))
    device = (
        torch.cuda.current_device()
        if (first if isinstance(first, Tensor) else first.base).is_cuda
        else -1
    )
    kinds = [
        None
        if x is None
        else (x.base.dtype, *x.block_shape)
        if not isinstance(x, Tensor)
        else x.dtype
        if x.data_ptr() % 16 == 0
        else (x.dtype,)
        for x in arguments
    ]
    call = (id(kernel), device, *fixed, *options.values(), *kinds, *sizes)
    compiled = _COMPILED.get(call)
    if compiled is None:
        alike = [
            "float" if type(x) is float else 2 + (x % 16 == 0) if 1 < x < 2**31 else x
            for x in sizes
        ]
        form = ("alike", *call[: len(call) - len(numbers)], *alike)
        compiled = _COMPILED.get(form)
        if len(_COMPILED) >= MOST_COMPILED:
            _COMPILED.clear()
        if compiled is None:
            check_names(kernel, (*tensors, *numbers, *constants))
            checked = [
                TensorDescriptor(*vars(x).values()) if isinstance(x, UncheckedDescriptor) else x
                for x in arguments
            ]
            compiled = kernel[grid](*checked, *sizes, **constants, **options, **FUSED)
            if FAST_LAUNCH and compiled is not None:
                _COMPILED[form] = compiled
            return
        _COMPILED[call] = compiled
    compiled[(*grid, 1, 1)[:3]](*arguments, *sizes, *fixed)


def check_names(kernel: Any, names: Sequence[str]) -> None:
    """Raise TypeError unless `names` are the names of all of the kernel's arguments, in the order
    of its signature.
    """
    expected = kernel.arg_names
    for position, (wanted, given) in enumerate(zip_longest(expected, names), 1):
        if wanted == given:
            continue
        if given is not None and given not in expected:
            raise TypeError(
                f"The launch of {kernel.__name__} passes {given!r} as argument {position}, which "
                "it does not take."
            )
        if wanted is not None and wanted not in names:
            raise TypeError(
                f"The launch of {kernel.__name__} leaves out argument {position}, {wanted!r}."
            )
        has = f"has {wanted!r}" if wanted else "has ended"
        raise TypeError(
            f"The launch of {kernel.__name__} passes {given!r} as argument {position}, where its "
            f"signature {has}."
        )


def starts_early(rows: Tensor) -> bool:
    """Return whether a kernel may begin before the previous one has ended.

    That is programmatic dependent launch, from Hopper on.

    Such a kernel first does what does not depend on the previous one, and waits for it (`gdc_wait`)
    before it reads or writes anything else.
    """
    return rows.is_cuda and torch.version.hip is None and capability(rows.device) >= (9, 0)
