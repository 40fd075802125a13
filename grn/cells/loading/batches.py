"""From rows of cells to a Batch.

Which genes a cell hides is a hash of seed, epoch, cell and gene, and does not depend on earlier
draws: it is the same in every process, batch and worker, and after a resume. Which counts it loses
is drawn for a batch at once, by a generator of its device.

Letters: C cells, B cells of a batch, N genes of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from grn.bags import Bags, Batch
from grn.cells.atlas import Atlas, StatesByKind
from grn.cells.cells import Cells
from grn.cells.interventions import cut_rows
from grn.cells.loading.order import Request
from grn.cells.loading.tables import Rows, Table, on
from grn.cells.loading.thinning import Thinning, shares

# splitmix64 (Steele, Lea and Flood 2014): the golden-ratio step and the two mixing multipliers, as
# signed integers.
STEP, FIRST, SECOND = (
    n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
HIDDEN, SHARE, THINNING, STEPS = range(4)  # streams of random numbers
MOST_HIDDEN = 0.6  # a cell of a training batch hides a share of its genes, from 0 to this
WHOLE = 0.25  # share of the cells of a batch that hide no gene, as in `grn predict`
# share of those that keep all counts; with fewer, cells of the same experiment are told worse
DEEP = 0.5
# the others keep a share of their counts, from this to 1; smaller shares cost accuracy
LEAST_COUNTS = 0.3


Bits = TypeVar("Bits", Tensor, np.ndarray)  # int64


def uniform(seed: int, stream: int, epoch: int, cells: Tensor, genes: int) -> Tensor:
    """Return random numbers in [0, 1), float32 [B, genes], each a function of (seed, stream, epoch,
    cell, gene) alone.

    stream: separates uses of one seed.
    cells [B]: int64, rows in the data set, on the device of the numbers.
    """
    of_cells = _mix(state_of(seed, stream, epoch), cells)
    bits = _mix(of_cells[:, None], torch.arange(genes, device=cells.device))
    return shifted(bits, 40).float() * 2.0**-24


@lru_cache
def state_of(*parts: int) -> int:
    """Return a state, an int64 from which random numbers are made, that depends on all parts.

    NumPy computes it: a torch operation would hand Python's lock to another thread.
    """
    state = np.zeros(1, np.int64)
    for part in parts:
        state = _mix(state, np.array([part]))
    return int(state[0])


def shifted(bits: Bits, by: int) -> Bits:
    """Shift the bits of int64 numbers to the right, with zeros in their place."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _mix(state: Bits | int, part: Bits) -> Bits:
    """Return a new state from a state and a number, modulo 2^64. It is computed in place, as there
    is one for each gene of each cell.
    """
    bits = state + (part + 1) * STEP
    for shift, factor in ((30, FIRST), (27, SECOND)):
        bits ^= shifted(bits, shift)
        bits *= factor
    bits ^= shifted(bits, 31)
    return bits


@dataclass(frozen=True)
class BagMaker(Dataset[Batch]):
    """A data set that makes the Batch of a Request.

    cells: in memory, or an Atlas, all cells of a file.
    states [C, S]: see Bags; None: not known.
    fold [C]: see Batch; None: no folds.
    trains: whether batches are for training. Then the identity token learns in every
        `read_every`-th step, from cells that hide genes, which depends on (seed, epoch, cell)
        alone, and of which some lose counts, which depends on (seed, epoch, the batch's first row,
        device). Batches of other steps have nothing for it to read.
    most_read: the most cells of a batch that the identity token learns from; None: all.
    thinning: how cells lose counts; None: they keep all.
    device: of the batch.
    """

    cells: Cells | Atlas
    states: np.ndarray | StatesByKind | None = None
    fold: np.ndarray | None = None
    seed: int = 0
    trains: bool = False
    read_every: int = 1
    most_read: int | None = None
    thinning: Thinning | None = None
    device: torch.device | str = "cpu"

    def __getitem__(self, request: Request) -> Batch:
        epoch, rows, step, buffer, following = Request(*request)
        reads = self.trains and (step + 1) % self.read_every == 0
        rows = rows[: self.most_read] if reads else rows
        if isinstance(self.cells, Atlas):
            assert buffer is not None, "cells of a file are read in buffers"
            # Read beside the steps of a GPU; a processor would be no faster, with more in memory.
            following = following if torch.device(self.device).type == "cuda" else None
            read = self.cells.table(buffer, following, self.device)[
                np.searchsorted(buffer, rows)
            ].to(self.device)
        else:
            read = self.whole[rows].to(self.device)
        here, done = partial(on, self.device), self.cells.interventions
        states = None if self.states is None else self.states[rows]
        bags = Bags(
            multiplicity=read.dense(read.value),
            basal=read.basal,
            states=None if states is None else here(states),
            room=None if states is None else tuple(np.count_nonzero(states, 0).tolist()),
            cut=None if done is None else here(cut_rows(done, rows, read.genes)),
        )
        batch = Batch(
            bags=bags,
            cells=here(np.asarray(rows, np.int64)),
            labels=here(self.cells.labels[rows].astype(np.int64)),
            fold=here(
                np.full(len(rows), -1) if self.fold is None else self.fold[rows].astype(np.int64)
            ),
        )
        return self.hidden(batch, epoch, read, int(rows[0])) if reads else batch

    @cached_property
    def whole(self) -> Table:
        """Return the table of all cells, which are in memory."""
        cells = self.cells
        assert isinstance(cells, Cells)
        unit = None if cells.counting is None else cells.counting.unit
        return Table.of(cells.multiplicity, cells.basal, unit, self.device)

    def hidden(self, batch: Batch, epoch: int, read: Rows, first: int) -> Batch:
        """Return a batch to which the cells that the identity token reads are added: with fewer
        counts (`seen`), and with the genes that they do not hide (`kept`).

        read: the rows of the batch.
        first: the row of its first cell in the data set, on the host.
        """
        cells, bags, seen = batch.cells, batch.bags, None
        if self.thinning is not None:
            # Of the batch: torch draws for all its cells.
            generator = torch.Generator(cells.device).manual_seed(
                state_of(self.seed, THINNING, epoch, first) % 2**64 >> 1
            )
            left = shares(len(cells), LEAST_COUNTS, DEEP, generator)
            seen = Bags(*self.thinning.thinned(read, left, generator))
        drawn = uniform(self.seed, SHARE, epoch, cells, 2)
        share = MOST_HIDDEN * drawn[:, :1] * (drawn[:, 1:] >= WHOLE)
        kept = uniform(self.seed, HIDDEN, epoch, cells, bags.multiplicity.shape[1]) >= share
        return replace(batch, seen=seen, kept=kept)
