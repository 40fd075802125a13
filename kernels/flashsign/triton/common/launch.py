"""Launching a kernel: arguments by name, checked when it is compiled, and a compiled kernel found in a microsecond."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import zip_longest
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from flashsign.triton.common.layout import UncheckedDescriptor
from flashsign.tuning.device import capability

# What a compiled kernel's own launcher takes may change from release to release: only where it was seen working.
LIGHT = triton.__version__.startswith(("3.6.", "3.7.")) and torch.version.hip is None
MOST_COMPILED = 4096
_COMPILED: dict[tuple[Hashable, ...], Any] = {}


def start(
    kernel: Any,
    grid: tuple[int, ...],
    *,
    tensors: dict[str, Any],
    numbers: dict[str, int | float],
    constants: dict[str, int | str | bool | None],
    **options: int,
) -> None:
    """kernel[grid](**tensors, **numbers, **constants, **options), the names in the order of the kernel's signature.

    tensors: Tensor, UncheckedDescriptor or None. The names are checked where the kernel is compiled; the launches after
    it pass the values by position. Raises TypeError that names the first argument out of place.

    At every launch Triton works out anew which compiled kernel its arguments take, by types, by 16-byte alignment, and
    by which integers are 1 or multiples of 16. That takes longer than all of SDPA, so here a table holds the compiled
    kernels: of calls with the same numbers, and where there was none, of calls whose numbers are alike.
    """
    arguments, sizes, fixed = tensors.values(), numbers.values(), constants.values()
    first = next(iter(arguments))
    device = torch.cuda.current_device() if (first if isinstance(first, Tensor) else first.base).is_cuda else -1
    kinds = [
        None if x is None
        else (x.base.dtype, *x.block_shape) if not isinstance(x, Tensor)
        else x.dtype if x.data_ptr() % 16 == 0 else (x.dtype,)
        for x in arguments
    ]  # fmt: skip
    call = (id(kernel), device, *fixed, *options.values(), *kinds, *sizes)
    compiled = _COMPILED.get(call)
    if compiled is None:
        alike = ["float" if type(x) is float else 2 + (x % 16 == 0) if 1 < x < 2**31 else x for x in sizes]
        form = ("alike", *call[: len(call) - len(numbers)], *alike)
        compiled = _COMPILED.get(form)
        if len(_COMPILED) >= MOST_COMPILED:
            _COMPILED.clear()
        if compiled is None:
            check_names(kernel, (*tensors, *numbers, *constants))
            checked = [
                TensorDescriptor(*vars(x).values()) if isinstance(x, UncheckedDescriptor) else x for x in arguments
            ]
            compiled = kernel[grid](*checked, *sizes, **constants, **options)
            if LIGHT and compiled is not None:
                _COMPILED[form] = compiled
            return
        _COMPILED[call] = compiled
    compiled[(*grid, 1, 1)[:3]](*arguments, *sizes, *fixed)


def check_names(kernel: Any, names: Sequence[str]) -> None:
    """Raises TypeError unless a launch names a kernel's arguments, all of them and in the order of its signature."""
    expected = kernel.arg_names
    for place, (wanted, given) in enumerate(zip_longest(expected, names), 1):
        if wanted == given:
            continue
        if given is not None and given not in expected:
            raise TypeError(
                f"The launch of {kernel.__name__} passes {given!r} as argument {place}, which it does not take."
            )
        if wanted is not None and wanted not in names:
            raise TypeError(f"The launch of {kernel.__name__} leaves out argument {place}, {wanted!r}.")
        has = f"has {wanted!r}" if wanted else "has ended"
        raise TypeError(
            f"The launch of {kernel.__name__} passes {given!r} as argument {place}, where its signature {has}."
        )


def starts_early(rows: Tensor) -> bool:
    """Whether a kernel may begin before the one before it has ended (programmatic dependent launch, from Hopper on).

    Launched so, it runs what needs nothing of that kernel, and waits (`gdc_wait`) before it reads or writes the rest.
    """
    return rows.is_cuda and torch.version.hip is None and capability(rows.device) >= (9, 0)
