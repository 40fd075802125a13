"""Block sizes of the folds' kernels (folds.kernels), measured on an H200, by (bytes of a number,
padded width); an entry is for wider rows, too, up to the next one.

Entries are tried in their order: the first that fits into the shared memory of a GPU is taken, or
the last.
"""

from __future__ import annotations

from torch import Tensor

from flashsign.tuning.block_sizes import BlockSizes, for_every_width, padded_width
from flashsign.tuning.device import device_limits

Table = dict[tuple[int, int], list[BlockSizes]]

MLP_FORWARD: Table = for_every_width(
    {
        (2, 16): [BlockSizes(128, 64, 4, 3), BlockSizes(64, 32, 4, 2)],
        (2, 128): [BlockSizes(128, 128, 8, 3), BlockSizes(128, 64, 4, 2), BlockSizes(64, 32, 4, 2)],
        (2, 256): [BlockSizes(128, 64, 8, 2), BlockSizes(32, 32, 4, 1)],
        (4, 16): [BlockSizes(64, 32, 4, 2)],
        (4, 64): [BlockSizes(64, 32, 4, 1)],
        (4, 128): [BlockSizes(32, 32, 4, 1)],
        (4, 256): [BlockSizes(16, 16, 4, 1)],
    }
)
"""Tiles of rows by tiles of hidden units."""

MLP_BACKWARD: Table = for_every_width(
    {
        (2, 16): [BlockSizes(128, 64, 8, 2), BlockSizes(64, 32, 4, 1)],
        (2, 128): [BlockSizes(64, 32, 4, 3), BlockSizes(64, 32, 4, 1)],
        (2, 256): [BlockSizes(64, 32, 8, 2), BlockSizes(32, 16, 4, 1)],
        (4, 16): [BlockSizes(32, 32, 4, 1)],
        (4, 128): [BlockSizes(16, 16, 4, 1)],
    }
)
"""Tiles of hidden units by tiles of rows."""

GATED_FORWARD: Table = for_every_width(
    {
        (2, 16): [BlockSizes(128, 64, 4, 3)],
        (2, 64): [BlockSizes(128, 64, 8, 3), BlockSizes(64, 32, 4, 2)],
        (2, 128): [BlockSizes(128, 64, 8, 3), BlockSizes(64, 64, 4, 2), BlockSizes(64, 32, 4, 2)],
        (2, 256): [BlockSizes(128, 32, 8, 2), BlockSizes(32, 16, 4, 1)],
        (4, 16): [BlockSizes(64, 32, 4, 2)],
        (4, 64): [BlockSizes(64, 32, 4, 1)],
        (4, 128): [BlockSizes(32, 16, 4, 1)],
        (4, 256): [BlockSizes(16, 16, 4, 1)],
    }
)
"""MLP_FORWARD with a gate."""

GATED_BACKWARD: Table = for_every_width(
    {
        (2, 16): [BlockSizes(64, 64, 4, 2), BlockSizes(64, 32, 4, 1)],
        (2, 128): [BlockSizes(64, 32, 4, 2), BlockSizes(32, 32, 4, 1)],
        (2, 256): [BlockSizes(32, 32, 8, 2), BlockSizes(16, 16, 4, 1)],
        (4, 16): [BlockSizes(32, 32, 4, 1)],
        (4, 64): [BlockSizes(32, 16, 4, 1)],
        (4, 128): [BlockSizes(16, 16, 4, 1)],
    }
)
"""MLP_BACKWARD with a gate."""

LOGITS_WIDTH = {2: 64, 4: 32}
"""Features of the tiles whose products add up to a tile of logits, by bytes of a number."""

CLASS_TOTALS: Table = {
    (2, 0): [BlockSizes(128, 128, 8, 3), BlockSizes(64, 64, 4, 2)],
    (2, 2048): [BlockSizes(128, 256, 8, 3), BlockSizes(128, 128, 8, 3), BlockSizes(64, 64, 4, 2)],
    (4, 0): [BlockSizes(64, 64, 4, 2)],
}
"""Tiles of rows by tiles of classes, whose log-sum-exp is taken. Widths here are the least for
which an entry is: with few features the exponentials of a tile take as long as its products, and
two programs a multiprocessor overlap them.
"""

CLASS_GRADIENTS: Table = {
    (2, 0): [BlockSizes(128, 256, 8, 3), BlockSizes(128, 128, 4, 3), BlockSizes(64, 64, 4, 2)],
    (4, 0): [BlockSizes(64, 64, 4, 2)],
}
"""Tiles of rows by tiles of classes, whose gradients are written; for every width."""

DISTRIBUTION_TOTALS: Table = {
    (2, 0): [BlockSizes(128, 256, 8, 3), BlockSizes(128, 128, 4, 3), BlockSizes(64, 64, 4, 2)],
    (4, 0): [BlockSizes(32, 64, 4, 2)],
}
"""CLASS_TOTALS of two tables of logits."""

DISTRIBUTION_GRADIENTS: Table = {
    (2, 0): [BlockSizes(64, 256, 8, 3), BlockSizes(64, 128, 4, 3), BlockSizes(64, 64, 4, 2)],
    (4, 0): [BlockSizes(32, 64, 4, 2)],
}
"""CLASS_GRADIENTS of two tables of logits."""

ATTENTION: Table = for_every_width(
    {
        (2, 16): [BlockSizes(128, 64, 4, 3), BlockSizes(64, 32, 4, 2)],
        (2, 128): [BlockSizes(128, 128, 8, 3), BlockSizes(128, 64, 8, 3), BlockSizes(64, 32, 4, 2)],
        (4, 16): [BlockSizes(64, 32, 4, 2)],
        (4, 64): [BlockSizes(64, 32, 4, 1)],
        (4, 128): [BlockSizes(32, 32, 4, 1)],
    },
    widest=128,
)
"""The template of attention, forward: tiles of queries by tiles of keys."""

ATTENTION_QUERIES: Table = for_every_width(
    {
        (2, 16): [BlockSizes(128, 64, 4, 2)],
        (2, 64): [BlockSizes(128, 64, 8, 3), BlockSizes(64, 32, 4, 1)],
        (2, 128): [BlockSizes(64, 64, 4, 2), BlockSizes(64, 32, 4, 1)],
        (4, 16): [BlockSizes(32, 32, 4, 1)],
        (4, 128): [BlockSizes(16, 16, 4, 1)],
    },
    widest=128,
)
"""The template of attention, backward for queries: tiles of queries by tiles of keys."""

ATTENTION_KEYS: Table = for_every_width(
    {
        (2, 16): [BlockSizes(64, 64, 4, 2)],
        (2, 64): [BlockSizes(128, 32, 4, 3), BlockSizes(64, 32, 4, 1)],
        (2, 128): [BlockSizes(64, 64, 4, 2), BlockSizes(64, 32, 4, 1)],
        (4, 16): [BlockSizes(32, 32, 4, 1)],
        (4, 128): [BlockSizes(16, 16, 4, 1)],
    },
    widest=128,
)
"""The template of attention, backward for keys and values: tiles of keys by tiles of queries."""


def of_width(table: Table, x: Tensor, width: int, tensors: int = 4) -> BlockSizes:
    """Return block sizes for tiles of x's dtype and of whole rows.

    tensors: of how many tensors a program holds tiles.
    """
    padded = padded_width(width)
    row = padded * x.element_size()
    most = device_limits(x.device)[1]
    fitting = (
        each
        for each in table[x.element_size(), padded]
        if each.shared(tensors - 2, row, x.element_size()) <= most
    )
    return next(fitting, table[x.element_size(), padded][-1])


def of_logits(table: Table, x: Tensor) -> BlockSizes:
    """Return block sizes for tiles of logits, from rows of x's dtype."""
    size = x.element_size()
    most = device_limits(x.device)[1]
    entries = table[size, max(least for of, least in table if of == size and least <= x.shape[-1])]
    for each in entries:
        if each.stages * (each.own + each.other) * LOGITS_WIDTH[size] * size <= most:
            return each
    return entries[-1]
