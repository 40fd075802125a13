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
LEAST_COUNTS = (
    0.3  # the others keep a share of their counts, from this to 1; smaller shares cost accuracy
)


Bits = TypeVar("Bits", Tensor, np.ndarray)  # int64


def uniform(seed: int, stream: int, epoch: int, cells: Tensor, genes: int) -> Tensor:
    """Numbers in [0, 1), float32 [C, N], each a function of (seed, stream, epoch, cell, gene)
    alone.

    cells [C]: int64, rows in the data set, on the device of the numbers.
    stream: separates uses of one seed.
    """
    states = cell_states(seed, stream, epoch, cells)
    bits = _mix(states[:, None], torch.arange(genes, device=cells.device))
    return shifted(bits, 40).float() * 2.0**-24


def cell_states(seed: int, stream: int, epoch: int, cells: Tensor) -> Tensor:
    """State of each cell, int64 [C], from which its random numbers are made."""
    return _mix(state_of(seed, stream, epoch), cells)


@lru_cache
def state_of(*parts: int) -> int:
    """The state that all parts make, one after the other. By NumPy: a torch operation would hand
    Python's lock to another thread.
    """
    state = np.zeros(1, np.int64)
    for part in parts:
        state = _mix(state, np.array([part]))
    return int(state[0])


def shifted(bits: Bits, by: int) -> Bits:
    """The bits of int64 numbers moved to the right, with zeros in their place."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _mix(state: Bits | int, part: Bits) -> Bits:
    """A new state from a state and a number, modulo 2^64; computed in place, as it runs over all
    genes of all cells.
    """
    bits = state + (part + 1) * STEP
    for shift, factor in ((30, FIRST), (27, SECOND)):
        bits ^= shifted(bits, shift)
        bits *= factor
    bits ^= shifted(bits, 31)
    return bits


@dataclass(frozen=True)
class BagMaker(Dataset[Batch]):
    """Makes the batch of a request (epoch, rows). cells: those in memory, or all cells of a file.

    states [C, S], fold [C]: of all cells, see Bags and Batch; None: not known, no folds.
    trains: in every `read_every`-th step, cells hide genes, a function of (seed, epoch, cell)
        alone, and some of them lose counts, of (seed, epoch, the batch's first row, device); other
        steps make nothing for the identity token to read.
    most_read: cells of a batch for the identity token; None: all.
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
        """All cells, where they are in memory."""
        cells = self.cells
        assert isinstance(cells, Cells)
        unit = None if cells.counting is None else cells.counting.unit
        return Table.of(cells.multiplicity, cells.basal, unit, self.device)

    def hidden(self, batch: Batch, epoch: int, read: Rows, first: int) -> Batch:
        """The batch, with what the identity token reads of it. first: the row of its first cell, on
        the host.
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
