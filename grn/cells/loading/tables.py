"""Cells as compressed rows, on the device that makes batches of them: to make a batch on a GPU, the
host sends the numbers of its rows alone.

Letters: C cells of a table, B cells of a batch, N genes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from grn.bags import map_tensors
from grn.runtime.process_memory import give_back

PIECE = 2**22  # numbers, or rows, that are copied to a GPU at a time
NUMBER = 8  # bytes of a number above 0 and its gene
SHARE = 0.25  # of a GPU's free memory, which a table may take; a larger one stays with the host


@dataclass(frozen=True)
class Rows:
    """B cells of a table, with their n numbers above 0, one cell after another.

    value [n]: multiplicities, float32.
    cell, gene [n]: int64, 0 to B - 1 and 0 to N - 1.
    basal [B]: multiplicity of the basal gene.
    unit [B]: see Counting; None: multiplicities are counts.
    genes: their number N.
    """

    value: Tensor
    cell: Tensor
    gene: Tensor
    basal: Tensor
    unit: Tensor | None
    genes: int

    def dense(self, value: Tensor) -> Tensor:
        """Return values [n] at the places of the numbers above 0, and 0 elsewhere, [B, N]."""
        return value.new_zeros(len(self.basal), self.genes).index_put_(
            (self.cell, self.gene), value
        )

    def to(self, device: torch.device | str) -> Rows:
        return map_tensors(self, lambda tensor: tensor.to(device))


@dataclass(frozen=True)
class Table:
    """All cells as arrays.

    first [C + 1]: int64, on the host: the place where the numbers of each cell begin.
    value, gene: of all numbers above 0, one cell after another.
    basal, unit [C], genes: see Rows.
    """

    first: np.ndarray
    value: Tensor
    gene: Tensor
    basal: Tensor
    unit: Tensor | None
    genes: int

    @classmethod
    def of(
        cls,
        values: sparse.csr_matrix,
        basal: np.ndarray,
        unit: np.ndarray | None,
        device: torch.device | str,
    ) -> Table:
        """Make a table of multiplicities. On the host, it shares their memory.

        values: CSR float32 [C, N] without stored zeros.
        basal, unit [C]: see Rows.
        device: where the table should be; it stays on the host if it is too large (see fitting).
        """
        device = fitting(device, values.nnz)
        value, gene, known = (on(device, each) for each in (values.data, values.indices, basal))
        counted = None if unit is None else on(device, unit.astype(np.float32))
        return cls(values.indptr.astype(np.int64), value, gene, known, counted, values.shape[1])

    @classmethod
    def joined(cls, parts: list[Table]) -> Table:
        """Return the cells of all parts, one part after the other.

        parts: this list is emptied, so that less is in memory twice.
        """
        first = np.append(0, np.cumsum(np.concatenate([np.diff(part.first) for part in parts])))
        basal, genes = torch.cat([part.basal for part in parts]), parts[0].genes
        units = [part.unit for part in parts if part.unit is not None]
        values, positions = [part.value for part in parts], [part.gene for part in parts]
        parts.clear()
        value = torch.cat(values)
        values.clear()
        give_back_on(value.device)
        return cls(
            first, value, torch.cat(positions), basal, torch.cat(units) if units else None, genes
        )

    def __getitem__(self, rows: np.ndarray) -> Rows:
        """Return some cells without waiting for a GPU. rows [B]."""
        device = self.value.device
        first = self.first[rows]
        size = self.first[1:][rows] - self.first[rows]
        given = on(device, np.stack([rows, size, first - np.cumsum(size) + size]))
        total = int(size.sum())
        cell = torch.arange(len(rows), device=device).repeat_interleave(given[1], output_size=total)
        place = torch.arange(total, device=device) + given[2, cell]
        unit = None if self.unit is None else self.unit[given[0]]
        return Rows(
            self.value[place], cell, self.gene[place].long(), self.basal[given[0]], unit, self.genes
        )


def on(device: torch.device | str, values: np.ndarray) -> Tensor:
    """Return an array as a tensor on a device; on the host they share their memory.

    A GPU gets it in pieces of pinned memory, beside what the host does. A large copy from other
    memory would pass through a small buffer of the driver, and training steps would wait for it.
    """
    tensor = torch.from_numpy(values)
    if torch.device(device).type != "cuda":
        return tensor
    found = torch.empty_like(tensor, device=device)
    for part, piece in zip(found.split(PIECE), tensor.split(PIECE), strict=True):
        part.copy_(piece.pin_memory(), non_blocking=True)
    return found


def fitting(device: torch.device | str, numbers: int) -> torch.device | str:
    """Return the device for a table of so many numbers: `device`, or the host where the table would
    take too much of a GPU's memory.
    """
    on_gpu = torch.device(device).type == "cuda"
    return (
        "cpu"
        if on_gpu and NUMBER * numbers > SHARE * torch.cuda.mem_get_info(device)[0]
        else device
    )


def give_back_on(device: torch.device | str) -> None:
    """Return free memory to the system where tables are on the host. Where they are on a GPU, it is
    left alone: steps would wait.
    """
    if torch.device(device).type == "cpu":
        give_back()


def empty_for(device: torch.device | str) -> Callable[..., np.ndarray]:
    """Return a function like np.empty. Its arrays are in pinned memory where they go to a GPU, so
    that `on` need not copy them first.
    """
    if torch.device(device).type != "cuda":
        return np.empty
    kinds = {np.float32: torch.float32, np.int32: torch.int32}
    return lambda size, dtype: torch.empty(size, dtype=kinds[dtype], pin_memory=True).numpy()


def beside_steps(make: Callable[[], Table], device: torch.device | str) -> Table:
    """Make a table beside the training steps of a GPU: its work for the table does not wait for
    steps that it was given before, and is done when this returns.
    """
    if torch.device(device).type != "cuda":
        return make()
    stream, training = _stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        table = make()
    stream.synchronize()
    for each in (table.value, table.gene, table.basal, table.unit):
        if each is not None:
            # when it is deleted, its memory is free once the steps before have read it
            each.record_stream(training)
    return table


@lru_cache
def _stream(device: torch.device | str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)
