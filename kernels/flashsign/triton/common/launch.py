"""What every launch needs: descriptors of tensors, the tile of every program, keys times their multiplicities.

Everything is in the one form of tiles.py: q [C', H, rows, E], k and v [C', K, rows, E], multiplicity [C', 1 or K, rows]
float32, any strides with E adjacent; packed bags have C' = 1 and offsets [bags + 1].
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from flashsign.tensor_cache import remembered
from flashsign.triton.streaming import scaled_keys
from flashsign.tuning.tables import ROW_STEP, capability, padded_width, processors

GAP = 256
"""Rows of zeros behind every packed bag's scaled keys, queries and gradients: the most rows that are read at once."""


# What a compiled kernel's own launcher takes may change from release to release: only where it was seen working.
LIGHT = triton.__version__.startswith(("3.6.", "3.7.")) and torch.version.hip is None
MOST_COMPILED = 4096
_COMPILED: dict[tuple[Hashable, ...], Any] = {}


class Unchecked(TensorDescriptor):  # type: ignore[misc]
    """A descriptor whose numbers are known to be good: Triton's checks take ten times as long as making it."""

    def __post_init__(self) -> None: ...


def start(
    kernel: Any, grid: tuple[int, ...], tensors: Sequence[Any], numbers: Sequence[int | float],
    constants: dict[str, int | str | bool], **options: int,
) -> None:  # fmt: skip
    """kernel[grid](*tensors, *numbers, **constants, **options); the kernel's constants are its last parameters.

    At every launch Triton works out anew which compiled kernel its arguments take, by types, by 16-byte alignment, and
    by which integers are 1 or multiples of 16. That takes longer than all of SDPA, so here it is a look into a table:
    of calls with the same numbers, and where there was none, of calls whose numbers are alike.
    """
    first = tensors[0]
    device = torch.cuda.current_device() if (first if isinstance(first, Tensor) else first.base).is_cuda else -1
    values = [constants[name] for name in kernel.arg_names[-len(constants) :]]
    kinds = [
        None if x is None
        else (x.base.dtype, *x.block_shape) if not isinstance(x, Tensor)
        else x.dtype if x.data_ptr() % 16 == 0 else (x.dtype,)
        for x in tensors
    ]  # fmt: skip
    call = (id(kernel), device, *values, *options.values(), *kinds, *numbers)
    compiled = _COMPILED.get(call)
    if compiled is None:
        alike = ["float" if type(x) is float else 2 + (x % 16 == 0) if 1 < x < 2**31 else x for x in numbers]
        form = ("alike", *call[: -len(numbers)], *alike)
        compiled = _COMPILED.get(form)
        if len(_COMPILED) >= MOST_COMPILED:
            _COMPILED.clear()
        if compiled is None:
            checked = [TensorDescriptor(*vars(x).values()) if isinstance(x, Unchecked) else x for x in tensors]
            compiled = kernel[grid](*checked, *numbers, **constants, **options)
            if LIGHT and compiled is not None:
                _COMPILED[form] = compiled
            return
        _COMPILED[call] = compiled
    compiled[(*grid, 1, 1)[:3]](*tensors, *numbers, *values)


def starts_early(rows: Tensor) -> bool:
    """Whether a kernel may begin before the one before it has ended (programmatic dependent launch, from Hopper on).

    Launched so, it runs what needs nothing of that kernel, and waits (`gdc_wait`) before it reads or writes the rest.
    """
    return rows.is_cuda and torch.version.hip is None and capability(rows.device) >= (9, 0)


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. Triton's own takes three microseconds, ten times a call."""
    return -(-a // b)


def precision(dtype: torch.dtype) -> str:
    """Products of float32 numbers: three of TF32 each, as exact as float32's own and faster; never one alone."""
    return "tf32x3" if dtype == torch.float32 else "tf32"


def descriptor(rows: Tensor, block: int) -> TensorDescriptor:
    """Tiles [1, 1, block, E_PAD] of rows [C', heads, rows, E]; what lies outside reads as zero."""
    shape = rows.shape
    a, b, c, _ = rows.stride()
    # The stride of an axis of one is never stepped over, and may be anything but what a descriptor takes.
    strides = [a if shape[0] > 1 else 64, b if shape[1] > 1 else 64, c if shape[2] > 1 else 64, 1]
    return Unchecked(rows, list(shape), strides, [1, 1, block, padded_width(shape[3])])


def aligned(rows: Tensor) -> Tensor:
    """rows [C', heads, rows, E], copied unless numbers of a row are adjacent and rows lie ROW_STEP numbers apart."""
    sizes, strides = rows.shape[:3], rows.stride()[:3]
    fits = all(n == 1 or (step > 0 and step % ROW_STEP == 0) for n, step in zip(sizes, strides, strict=True))
    if fits and rows.stride(3) == 1 and rows.data_ptr() % 16 == 0:
        return rows
    return rows.clone(memory_format=torch.contiguous_format)


def steps(rows: Tensor) -> tuple[int, int, int]:
    """The strides of rows [C', heads, rows, E] but the last; 0 for an axis of one, whose stride may be anything."""
    a, b, c, _ = rows.stride()
    cells, heads, count, _ = rows.shape
    return a if cells > 1 else 0, b if heads > 1 else 0, c if count > 1 else 0


@dataclass(frozen=True)
class Tiles:
    """Which tile each program does. schedule [2, count]: bag (-1: none) and first row; dense bags need none."""

    count: int
    bags: int
    schedule: Tensor | None

    @classmethod
    def of(cls, rows: int, bags: int, block: int, offsets: Tensor | None) -> Tiles:
        """Tiles of `block` rows. Packed: as many as any offsets could ask for, known without a look at the device."""
        if offsets is None:
            return cls(cdiv(rows, block), bags, None)
        bags = len(offsets) - 1
        count = rows // block + bags
        return cls(count, bags, remembered(offsets, (block, count), lambda: schedule(offsets, block, count)))

    def grid(self, heads: int) -> tuple[int]:
        return (self.count * heads * (1 if self.schedule is not None else self.bags),)


def schedule(offsets: Tensor, block: int, count: int) -> Tensor:
    """Bag (-1: none) and first row of `count` tiles, int32 [2, count]. Long bags first: the last to start are short."""
    sizes = offsets.diff()
    order = sizes.argsort(descending=True, stable=True)
    tiles = (sizes[order] + block - 1) // block
    ends = tiles.cumsum(0)
    position = torch.arange(count, device=offsets.device)
    slot = torch.searchsorted(ends, position, right=True)
    inside = slot.clamp_max(len(sizes) - 1)
    start = (position - ends[inside] + tiles[inside]) * block
    return torch.stack([torch.where(slot < len(sizes), order[inside], -1), start]).int()


@dataclass(frozen=True)
class Keys:
    """Scaled keys [C', K, rows (+ gaps), E] and their totals [bags, K, 1 + MOST_PARTS]: see scaled_keys."""

    rows: Tensor
    totals: Tensor
    parts: int
    gap: int

    @classmethod
    def of(cls, k: Tensor, m: Tensor, offsets: Tensor | None) -> Keys:
        first, heads, rows, width = k.shape
        bags, gap = (first, 0) if offsets is None else (len(offsets) - 1, GAP)
        block = max(16, 8192 // padded_width(width))
        # Each looks at all multiplicities of its bag: so many programs as fill the device, and no more.
        filling = cdiv(4 * processors(k.device), max(1, bags * heads))
        parts = max(1, min(scaled_keys.MOST_PARTS.value, cdiv(rows, block), filling))
        scaled = with_gaps(k, bags, gap)
        totals = torch.empty(bags, heads, 1 + scaled_keys.MOST_PARTS.value, device=k.device)
        start(
            scaled_keys.scaled_keys, (parts, heads, bags), (k, m, offsets, scaled, totals),
            (*steps(k), m.stride(0), head_stride(m), *steps(scaled), rows, heads, gap),
            {
                "E": width, "E_PAD": padded_width(width), "BLOCK": block,
                "LOOK": max(128, min(4096, padded_width(rows))), "PACKED": offsets is not None,
                "EARLY": starts_early(k),
            },
            num_warps=8,
        )  # fmt: skip
        return cls(scaled, totals, parts, gap)


def with_gaps(rows: Tensor, bags: int, gap: int) -> Tensor:
    """Room for rows [C', heads, rows, ...] that a kernel fills; where bags lie `gap` rows apart, zeros.

    Heads lie a multiple of four rows apart: of float32 numbers, one a row, what a descriptor can step over.
    """
    make = torch.zeros if gap else torch.empty
    count = rows.shape[2] + bags * gap
    room = make(*rows.shape[:2], cdiv(count, 4) * 4, *rows.shape[3:], device=rows.device, dtype=rows.dtype)
    return room[:, :, :count]


def head_stride(m: Tensor) -> int:
    """0 where all key heads share a bag's multiplicities."""
    return m.stride(1) if m.shape[1] > 1 else 0
