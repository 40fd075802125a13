"""Rows of cells become a Batch: dense or packed bags, with some genes masked.

Letters: B cells of a batch, N genes of the vocabulary, T genes of all packed bags.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Dataset

from grn.bags import Bags, Batch
from grn.data.cells import Cells
from grn.data.masking import uniform
from grn.data.order import OnceInOrder, Request

TRAIN, EVALUATE = 0, 1  # streams of random numbers
DENSE_UP_TO = 4096  # genes: from there on most of a dense bag is absent genes


def is_packed(bags: str, genes: int) -> bool:
    """What `data.bags` (dense | packed | auto) means for a vocabulary of this size."""
    return bags == "packed" or (bags == "auto" and genes > DENSE_UP_TO)


@dataclass(frozen=True)
class BagMaker(Dataset[Batch]):
    """Batches by request (epoch, rows). A mask depends on (seed, stream, epoch, cell, gene) and nothing else.

    masked_fraction: share of genes that are masked, in every cell anew each epoch.
    absent_fraction: packed bags list this share of the masked genes that are absent anyway; dense bags list all genes.
    """

    cells: Cells
    packed: bool
    masked_fraction: float = 0.0
    absent_fraction: float = 1.0
    seed: int = 0
    stream: int = TRAIN

    def __getitem__(self, request: Request) -> Batch:
        epoch, rows = request
        before = self.cells.multiplicity[rows].toarray()
        masked, listed = self._masks(epoch, rows, before > 0)
        visible = np.where(masked, np.float32(0), before)
        basal = torch.from_numpy(self.cells.basal[rows])
        chosen = self.cells.regulators
        regulators = torch.from_numpy(before if chosen is None else before[:, chosen])
        whole = torch.arange(before.shape[1])
        if self.packed:
            genes = torch.from_numpy(np.nonzero(listed)[1])
            offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(listed.sum(axis=1))]))
            bags = Bags(genes, torch.from_numpy(visible[listed]), offsets, basal, regulators)
            importance = torch.from_numpy(self._importance(before, masked)[listed])
            before, masked = before[listed], masked[listed]
        else:
            bags, importance = Bags(whole, torch.from_numpy(visible), None, basal, regulators), None
        return Batch(
            bags=bags,
            multiplicity=torch.from_numpy(before),
            masked=torch.from_numpy(masked),
            cells=torch.from_numpy(np.asarray(rows, np.int64)),
            labels=torch.from_numpy(self.cells.labels[rows]),
            property=torch.from_numpy(self.cells.property[rows]),
            importance=importance,
        )

    def _importance(self, before: np.ndarray, masked: np.ndarray) -> np.ndarray:
        """One over the chance that a masked gene is listed, 0 for the others; float32 [B, N].

        A packed bag lists all the masked genes that are present and few of those that are absent: counted alike, they
        would teach the model that a hidden gene is expressed.
        """
        absent = 1 / self.absent_fraction if self.absent_fraction else 0
        return np.where(masked, np.where(before > 0, 1, absent), 0).astype(np.float32)

    def _masks(self, epoch: int, rows: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which genes are masked and which are listed, bool [B, N] each."""
        if self.masked_fraction == 0:
            return np.zeros_like(present), present
        chance = uniform(self.seed, self.stream, epoch, rows, present.shape[1])
        masked = chance < self.masked_fraction
        # The absent genes of a packed bag are a part of those that the dense bag masks: the lowest numbers.
        sampled = chance < self.masked_fraction * self.absent_fraction
        return masked, present | sampled


def plain_batches(cells: Cells, rows: np.ndarray, batch_size: int, *, packed: bool = False) -> Iterator[Batch]:
    """Batches with nothing masked, every row once and in order: for prediction and read-outs."""
    maker = BagMaker(cells, packed)
    return (maker[request] for request in OnceInOrder(rows, batch_size))
