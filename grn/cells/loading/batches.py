"""From rows of cells to a Batch: dense or packed bags, with some genes masked.

Random numbers are counter-based: each is a hash of what it is used for and does not depend on earlier draws. So a cell
has the same mask in every process, batch and worker, and after a resume.

Letters: C cells, B cells of a batch, N genes of the vocabulary, T genes of all packed bags.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch.utils.data import Dataset

from grn.bags import Bags, Batch
from grn.cells.cells import Cells
from grn.cells.loading.order import Request, once_in_order

# splitmix64 (Steele, Lea and Flood 2014): the golden-ratio step and the two mixing multipliers.
STEP, FIRST, SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniform(seed: int, stream: int, epoch: int, cells: np.ndarray, genes: int) -> np.ndarray:
    """Numbers in [0, 1), float64 [C, N], each a function of (seed, stream, epoch, cell, gene) alone.

    cells [C]: rows in the data set.   stream: separates uses of one seed.
    """
    return (gene_bits(cell_states(seed, stream, epoch, cells), genes) >> np.uint64(11)) * 2.0**-53


def cell_states(seed: int, stream: int, epoch: int, cells: np.ndarray) -> np.ndarray:
    """State of each cell, uint64 [C]; `gene_bits` makes its random numbers from it."""
    state = np.zeros(1, np.uint64)
    for part in (seed, stream, epoch):
        state = _mix(state, np.array([part], np.uint64))
    return _mix(state, np.asarray(cells).astype(np.uint64))


def gene_bits(states: np.ndarray, genes: int) -> np.ndarray:
    """Random bits uint64 [..., N] from states [...]; they are below threshold(p) exactly where `uniform` is below p."""
    return _mix(states[..., None], np.arange(genes, dtype=np.uint64))


def threshold(p: float) -> np.uint64:
    """The probability p (0 <= p < 1) on the scale of `gene_bits`."""
    return np.uint64(math.ceil(p * 2**53) << 11)


def _mix(state: np.ndarray, part: np.ndarray) -> np.ndarray:
    """A new state from a state and a number, modulo 2^64; computed in place, as it runs over all genes of all cells."""
    bits = state + (part + np.uint64(1)) * STEP
    for shift, factor in ((30, FIRST), (27, SECOND)):
        bits ^= bits >> np.uint64(shift)
        bits *= factor
    bits ^= bits >> np.uint64(31)
    return bits


TRAIN, EVALUATE, DROPOUT = 0, 1, 2  # streams of random numbers
DENSE_UP_TO = 4096  # genes; in larger vocabularies most genes of a dense bag would be absent


def is_packed(bags: str, genes: int) -> bool:
    """Whether `data.bags` (dense | packed | auto) means packed bags for a vocabulary of `genes` genes."""
    return bags == "packed" or (bags == "auto" and genes > DENSE_UP_TO)


@dataclass(frozen=True)
class BagMaker(Dataset[Batch]):
    """Makes the batch of a request (epoch, rows). A mask depends on (seed, stream, epoch, cell, gene) alone.

    masked_fraction: share of genes that are masked, drawn for every cell and epoch.
    absent_fraction: packed bags list this share of the masked absent genes; dense bags list all genes.
    with_regulators: bags also hold the regulators' multiplicities, which only a regulation layer reads.
    part, parts: the part of each cell's genes that this process gets, of so many (gene parallelism).
    """

    cells: Cells
    packed: bool
    masked_fraction: float = 0.0
    absent_fraction: float = 1.0
    seed: int = 0
    stream: int = TRAIN
    with_regulators: bool = True
    part: int = 0
    parts: int = 1

    def __getitem__(self, request: Request) -> Batch:
        epoch, rows = request
        basal, stored, regulators = torch.from_numpy(self.cells.basal[rows]), self.cells.multiplicity[rows], None
        if self.with_regulators:
            chosen = self.cells.regulators
            regulators = torch.from_numpy((stored if chosen is None else stored[:, chosen]).toarray())
        if self.packed:
            genes, offsets, before, masked = self._listed(epoch, rows, stored)
            visible = torch.from_numpy(np.where(masked, np.float32(0), before))
            bags = Bags(torch.from_numpy(genes), visible, torch.from_numpy(offsets), basal, regulators)
            # A packed bag lists every masked gene that is present but only some that are absent. With equal weights the
            # model would learn that a masked gene is usually expressed.
            absent = 1 / self.absent_fraction if self.absent_fraction else 0
            weight = np.where(masked, np.where(before > 0, 1, absent), 0).astype(np.float32)
            importance = torch.from_numpy(weight)
        else:
            before = stored.toarray()
            masked = uniform(self.seed, self.stream, epoch, rows, before.shape[1]) < self.masked_fraction
            visible = torch.from_numpy(np.where(masked, np.float32(0), before))
            whole = torch.arange(before.shape[1])
            bags, importance = Bags(whole, visible, None, basal, regulators), None
        batch = Batch(
            bags=bags,
            multiplicity=torch.from_numpy(before),
            masked=torch.from_numpy(masked),
            cells=torch.from_numpy(np.asarray(rows, np.int64)),
            labels=torch.from_numpy(self.cells.labels[rows]),
            property=torch.from_numpy(self.cells.property[rows]),
            importance=importance,
        )
        return batch.part_of_genes(self.part, self.parts) if self.parts > 1 else batch

    def _listed(
        self, epoch: int, rows: np.ndarray, stored: sparse.csr_matrix
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Packed: genes int64 [T], offsets [B + 1], multiplicity before masking [T] and which are masked, bool [T].

        One cell at a time: arrays of all cells by all genes exceed the processor's caches and took four times as long.
        """
        masks = threshold(self.masked_fraction)
        # Absent genes are listed by the lowest random numbers, so they are among those that a dense bag masks.
        samples = threshold(self.masked_fraction * self.absent_fraction)
        before = np.zeros(stored.shape[1], np.float32)  # multiplicities of one cell
        found = []
        states = cell_states(self.seed, self.stream, epoch, rows)
        for state, start, end in zip(states, stored.indptr, stored.indptr[1:], strict=False):
            own = stored.indices[start:end]
            before[own] = stored.data[start:end]
            # Without masks both thresholds are 0, and no random number is below them: none is computed.
            bits = gene_bits(state, len(before)) if self.masked_fraction else np.full(len(before), masks)
            genes = np.flatnonzero((before > 0) | (bits < samples))
            found.append((genes, before[genes], bits[genes] < masks))
            before[own] = 0
        genes, listed, masked = (np.concatenate(each) for each in zip(*found, strict=True))
        return genes, np.cumsum([0, *(len(each[0]) for each in found)]), listed, masked


def plain_batches(cells: Cells, rows: np.ndarray, batch_size: int, *, packed: bool = False) -> Iterator[Batch]:
    """Batches without masks, every row once and in order: for prediction and read-outs."""
    maker = BagMaker(cells, packed)
    return (maker[request] for request in once_in_order(rows, batch_size))
