"""From rows of cells to a Batch.

Random numbers are counter-based: each is a hash of what it is used for and does not depend on earlier draws. So a cell
hides the same genes in every process, batch and worker, and after a resume.

Letters: C cells, B cells of a batch, N genes of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Dataset

from grn.bags import Bags, Batch
from grn.cells.cells import Cells
from grn.cells.interventions import cut_rows
from grn.cells.loading.order import Request
from grn.cells.loading.thinning import Thinning, shares

# splitmix64 (Steele, Lea and Flood 2014): the golden-ratio step and the two mixing multipliers.
STEP, FIRST, SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
HIDDEN, SHARE, THINNING, STEPS = range(4)  # streams of random numbers
MOST_HIDDEN = 0.6  # a cell of a training batch hides a share of its genes, from 0 to this
WHOLE = 0.25  # share of the cells of a batch that hide no gene, as in `grn predict`
DEEP = 0.5  # share of those that keep all counts; with fewer, cells of the same experiment are told worse
LEAST_COUNTS = 0.3  # the others keep a share of their counts, from this to 1; smaller shares cost accuracy


def uniform(seed: int, stream: int, epoch: int, cells: np.ndarray, genes: int) -> np.ndarray:
    """Numbers in [0, 1), float32 [C, N], each a function of (seed, stream, epoch, cell, gene) alone.

    cells [C]: rows in the data set.   stream: separates uses of one seed.
    """
    states = cell_states(seed, stream, epoch, cells)
    bits = _mix(states[:, None], np.arange(genes, dtype=np.uint64))
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def cell_states(seed: int, stream: int, epoch: int, cells: np.ndarray) -> np.ndarray:
    """State of each cell, uint64 [C], from which its random numbers are made."""
    state = np.zeros(1, np.uint64)
    for part in (seed, stream, epoch):
        state = _mix(state, np.array([part], np.uint64))
    return _mix(state, np.asarray(cells).astype(np.uint64))


def _mix(state: np.ndarray, part: np.ndarray) -> np.ndarray:
    """A new state from a state and a number, modulo 2^64; computed in place, as it runs over all genes of all cells."""
    bits = state + (part + np.uint64(1)) * STEP
    for shift, factor in ((30, FIRST), (27, SECOND)):
        bits ^= bits >> np.uint64(shift)
        bits *= factor
    bits ^= bits >> np.uint64(31)
    return bits


@dataclass(frozen=True)
class BagMaker(Dataset[Batch]):
    """Makes the batch of a request (epoch, rows).

    states [C, S], fold [C]: of all cells, see Bags and Batch; None: not known, no folds.
    trains: in every `read_every`-th step, cells hide genes and some of them lose counts, each a function of (seed,
    epoch, cell) alone; other steps make nothing for the identity token to read.
    """

    cells: Cells
    states: np.ndarray | None = None
    fold: np.ndarray | None = None
    seed: int = 0
    trains: bool = False
    read_every: int = 1
    thinning: Thinning | None = None

    def __getitem__(self, request: Request) -> Batch:
        epoch, rows, step = Request(*request)
        multiplicity = torch.from_numpy(self.cells.multiplicity[rows].toarray())
        basal = torch.from_numpy(self.cells.basal[rows])
        states = None if self.states is None else torch.from_numpy(self.states[rows])
        done = self.cells.interventions
        cut = None if done is None else torch.from_numpy(cut_rows(done, rows, multiplicity.shape[1]))
        fold = np.full(len(rows), -1) if self.fold is None else self.fold[rows]
        seen, kept = None, None
        if self.trains and step % self.read_every == 0:
            if self.thinning is not None:
                state = cell_states(self.seed, THINNING, epoch, rows[:1])  # of the batch: torch draws for all its cells
                generator = torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))
                left = shares(len(rows), LEAST_COUNTS, DEEP, generator)
                seen = Bags(*self.thinning.thinned(multiplicity, basal, torch.from_numpy(rows), left, generator))
            drawn = uniform(self.seed, SHARE, epoch, rows, 2)
            share = MOST_HIDDEN * drawn[:, :1] * (drawn[:, 1:] >= WHOLE)
            kept = torch.from_numpy(uniform(self.seed, HIDDEN, epoch, rows, multiplicity.shape[1]) >= share)
        return Batch(
            bags=Bags(multiplicity, basal, states, cut),
            seen=seen,
            kept=kept,
            cells=torch.from_numpy(np.asarray(rows, np.int64)),
            labels=torch.from_numpy(self.cells.labels[rows]),
            property=torch.from_numpy(self.cells.property[rows]),
            fold=torch.from_numpy(np.asarray(fold, np.int64)),
        )
