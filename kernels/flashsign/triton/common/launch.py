"""Launching a kernel: arguments by name, and a fast look-up of compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from operator import itemgetter
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
Order = tuple[Callable[[Mapping[str, Any]], tuple[Any, ...]], int, int]
_ORDER: dict[int, Order] = {}
"""What _order found for every kernel that was launched."""


def start(kernel: Any, grid: tuple[int, ...], arguments: Mapping[str, Any], **options: int) -> None:
    """Launch kernel[grid], with those of the arguments that its signature names.

    arguments: by name. A signature has tensors first (Tensor, UncheckedDescriptor or None), then
        numbers, then constants, whose names are in capitals; options: warps, stages, early starts.
    Raises KeyError for an argument that is missing.

    At every launch Triton determines anew which compiled kernel its arguments need: by their types,
    by 16-byte alignment, and by which integers are 1 or multiples of 16. That takes longer than a
    whole call of torch's scaled_dot_product_attention. So a table holds the compiled kernels, by
    the very numbers of a call (`call`) and by what Triton distinguishes of them (`form`).
    """
    pick, before, behind = _ORDER.get(id(kernel)) or _order(kernel, arguments)
    values = pick(arguments)
    tensors, numbers, constants = values[:before], values[before:behind], values[behind:]
    first = tensors[0]
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
        for x in tensors
    ]
    call = (id(kernel), device, *constants, *options.values(), *kinds, *numbers)
    compiled = _COMPILED.get(call)
    if compiled is None:
        alike = [
            "float" if type(x) is float else 2 + (x % 16 == 0) if 1 < x < 2**31 else x
            for x in numbers
        ]
        form = ("alike", *call[: len(call) - len(numbers)], *alike)
        compiled = _COMPILED.get(form)
        if len(_COMPILED) >= MOST_COMPILED:
            _COMPILED.clear()
        if compiled is None:
            checked = [
                TensorDescriptor(*vars(x).values()) if isinstance(x, UncheckedDescriptor) else x
                for x in tensors
            ]
            compiled = kernel[grid](*checked, *numbers, *constants, **options, **FUSED)
            if FAST_LAUNCH and compiled is not None:
                _COMPILED[form] = compiled
            return
        _COMPILED[call] = compiled
    compiled[(*grid, 1, 1)[:3]](*tensors, *numbers, *constants)


def _order(kernel: Any, arguments: Mapping[str, Any]) -> Order:
    """Return what picks a kernel's arguments in the order of its signature, and where its numbers
    and its constants begin.
    """
    names = kernel.arg_names
    constants = [name for name in names if name.isupper()]
    numbers = [
        name for name in names if not name.isupper() and isinstance(arguments[name], (int, float))
    ]
    behind = len(names) - len(constants)
    before = behind - len(numbers)
    assert [*names[:before], *numbers, *constants] == list(names), "tensors come first"
    _ORDER[id(kernel)] = itemgetter(*names), before, behind
    return _ORDER[id(kernel)]


def starts_early(rows: Tensor) -> bool:
    """Return whether a kernel may begin before the previous one has ended.

    That is programmatic dependent launch, from Hopper on.

    Such a kernel first does what does not depend on the previous one, and waits for it (`gdc_wait`)
    before it reads or writes anything else.
    """
    return rows.is_cuda and torch.version.hip is None and capability(rows.device) >= (9, 0)
