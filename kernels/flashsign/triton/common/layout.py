"""Layout of a call's tensors for a kernel:
by pointer and strides or by descriptor, tile by tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from flashsign.attention.call import AttentionCall
from flashsign.tensor_cache import cached
from flashsign.tuning.block_sizes import ROW_STEP, padded_width

PROGRAMS = 1024
"""Fewer programs leave multiprocessors idle."""
GAP = 256
"""Rows of zeros behind the scaled keys, queries and gradients of every packed bag: the most rows
that a tile has.
"""


class UncheckedDescriptor(TensorDescriptor):  # type: ignore[misc]
    """A descriptor without Triton's checks, which take ten times as long as making it: aligned()
    fulfils them.
    """

    def __post_init__(self) -> None: ...


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up.

    Triton's function takes three microseconds, and a call of attention needs ten of them.
    """
    return -(-a // b)


def shares(rows: int, tile: int, programs: int) -> tuple[int, int]:
    """Return how many of the rows that a program loops over it takes, whole tiles, and how many
    programs share them, so that there are about PROGRAMS in all; 4 tiles are the least that are
    worth a program.
    """
    parts = min(cdiv(PROGRAMS, programs), cdiv(rows, 4 * tile))
    each = cdiv(cdiv(rows, parts), tile) * tile
    return each, cdiv(rows, each)


def fitting(keys: int, tile: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the tile with more queries where the tables have fewer keys than it."""
    queries, most, warps = tile
    least = min(max(16, 1 << (keys - 1).bit_length()), most)
    return queries * most // least, least, warps


def descriptor(rows: Tensor, block: int) -> TensorDescriptor:
    """Return tiles [1, 1, block, E_PAD] of rows [C', heads, rows, E]; what lies outside reads as
    zero.
    """
    shape = rows.shape
    a, b, c, _ = rows.stride()
    # The stride of an axis of length one is never used, but a descriptor takes multiples of 16
    # bytes only.
    steps = [a if shape[0] > 1 else 64, b if shape[1] > 1 else 64, c if shape[2] > 1 else 64, 1]
    return UncheckedDescriptor(rows, list(shape), steps, [1, 1, block, padded_width(shape[3])])


def tiles_of(matrix: Tensor, rows: int, columns: int) -> UncheckedDescriptor:
    """Return tiles [rows, columns] of a contiguous matrix whose rows are multiples of 16 bytes."""
    return UncheckedDescriptor(matrix, list(matrix.shape), [matrix.shape[1], 1], [rows, columns])


def aligned(rows: Tensor) -> Tensor:
    """Return rows [C', heads, rows, E], copied unless the numbers of a row are adjacent, all other
    strides are multiples of ROW_STEP, and the tensor begins at a multiple of 16 bytes.
    """
    a, b, c, along = rows.stride()
    cells, heads, count, _ = rows.shape
    if (
        along == 1
        and (cells == 1 or (a > 0 and a % ROW_STEP == 0))
        and (heads == 1 or (b > 0 and b % ROW_STEP == 0))
        and (count == 1 or (c > 0 and c % ROW_STEP == 0))
        and rows.data_ptr() % 16 == 0
    ):
        return rows
    return rows.clone(memory_format=torch.contiguous_format)


def aligned_call(call: AttentionCall) -> AttentionCall:
    """Return the call with tensors as `aligned` leaves them."""
    q, k, v = aligned(call.q), aligned(call.k), aligned(call.v)
    same = q is call.q and k is call.k and v is call.v
    return call if same else call.with_(q=q, k=k, v=v)


def with_gaps(rows: Tensor, bags: int, gap: int) -> Tensor:
    """Return a tensor like rows [C', heads, rows, ...] for a kernel to fill, with gaps between
    packed bags.

    A gap is `gap` rows of zeros behind each bag.

    Heads lie a multiple of four rows apart, so that a descriptor can also take tensors of one
    float32 number a row.
    """
    make = torch.zeros if gap else torch.empty
    count = rows.shape[2] + bags * gap
    buffer = make(
        *rows.shape[:2], cdiv(count, 4) * 4, *rows.shape[3:], device=rows.device, dtype=rows.dtype
    )
    return buffer[:, :, :count]


@dataclass(frozen=True)
class TileAssignment:
    """The tiles of all bags. Each tile and head has one program, which reads its own by
    device_functions.program_tile.

    count: tiles of a dense bag, or of all packed bags together. schedule [2, count], for packed
        bags only: the bag (-1: none) and the first row of each tile.
    """

    count: int
    bags: int
    schedule: Tensor | None

    @classmethod
    def of(cls, rows: int, bags: int, block: int, offsets: Tensor | None) -> TileAssignment:
        """Return tiles of `block` rows; rows: of a dense bag, or of all packed bags together.

        Packed bags get as many tiles as any offsets can need, so that nothing synchronises with the
        GPU.
        """
        if offsets is None:
            return cls(cdiv(rows, block), bags, None)
        bags = len(offsets) - 1
        count = rows // block + bags
        return cls(
            count, bags, cached(offsets, (block, count), lambda: schedule(offsets, block, count))
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the kernels that read their tile."""
        return {"schedule": self.schedule, "tiles": self.count}

    def grid(self, heads: int) -> tuple[int]:
        """Return the number of programs, for `heads` heads."""
        return (self.count * heads * (1 if self.schedule is not None else self.bags),)


def schedule(offsets: Tensor, block: int, count: int) -> Tensor:
    """Return bag (-1: none) and first row of `count` tiles, int32 [2, count].

    Long bags first, so that the last tiles are of short ones.
    """
    sizes = offsets.diff()
    order = sizes.argsort(descending=True, stable=True)
    tiles = (sizes[order] + block - 1) // block
    ends = tiles.cumsum(0)
    position = torch.arange(count, device=offsets.device)
    slot = torch.searchsorted(ends, position, right=True)
    inside = slot.clamp_max(len(sizes) - 1)
    start = (position - ends[inside] + tiles[inside]) * block
    return torch.stack([torch.where(slot < len(sizes), order[inside], -1), start]).int()
