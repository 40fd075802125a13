"""Loaders for Lightning. The Trainer needs `use_distributed_sampler=False`: the order here is already shared out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from grn.bags import Batch
from grn.data.cells import Cells
from grn.data.loading.batches import EVALUATE, TRAIN, BagMaker, is_packed
from grn.data.loading.gene_parallel import Place
from grn.data.loading.order import EpochOrder, OnceInOrder
from grn.data.preprocessing.split import Split


class CellsDataModule(LightningDataModule):
    """Training batches are masked anew each epoch; validation and test batches always in the same way.

    gene_parallel: so many processes have the same cells, and a part of their genes each (Place).
    """

    def __init__(
        self,
        cells: Cells,
        split: Split,
        *,
        batch_size: int,
        masked_fraction: float,
        seed: int,
        bags: str = "auto",
        absent_fraction: float = 0.1,
        num_workers: int = 0,
        gene_parallel: int = 1,
        with_regulators: bool = True,
    ):
        super().__init__()
        self.cells, self.split = cells, split
        self.batch_size, self.seed, self.num_workers = batch_size, seed, num_workers
        self.gene_parallel = gene_parallel
        packed = is_packed(bags, len(cells.vocabulary))
        self.training, self.evaluation = (
            BagMaker(cells, packed, masked_fraction, absent_fraction, seed, stream, with_regulators)
            for stream in (TRAIN, EVALUATE)
        )

    def steps_per_epoch(self, world: int = 1) -> int:
        """Optimiser steps of one pass, from the data alone: the schedule must not change when a run resumes."""
        return len(EpochOrder(self.split.train, self.batch_size, self.seed, 0, world // self.gene_parallel))

    def train_dataloader(self) -> DataLoader:
        place = self._place()
        order = EpochOrder(self.split.train, self.batch_size, self.seed, place.replica, place.replicas)
        return ResumableLoader(_sharing(self.training, place), order, **self._options())

    def val_dataloader(self) -> DataLoader:
        return self._once(self.split.validation, self._place())

    def test_dataloader(self) -> DataLoader:
        """All test cells, and all their genes, in every process: one process computes the final metrics."""
        return self._once(self.split.test, Place())

    def _once(self, rows: np.ndarray, place: Place) -> DataLoader:
        order = OnceInOrder(rows, self.batch_size, place.replica, place.replicas)
        return DataLoader(_sharing(self.evaluation, place), sampler=order, **self._options())

    def _place(self) -> Place:
        if self.trainer is None:
            return Place()
        return Place.of(self.trainer.global_rank, self.trainer.world_size, self.gene_parallel)

    def _options(self) -> dict:
        # batch_size None: a sampler's item is already a whole batch.
        return {
            "batch_size": None,
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,  # an epoch may be a few batches
            "pin_memory": torch.cuda.is_available(),
        }


def _sharing(maker: BagMaker, place: Place) -> BagMaker:
    return replace(maker, part=place.part, parts=place.parts)


class ResumableLoader(DataLoader):
    """A loader that counts its epochs and batches; Lightning stores the counts in checkpoints and gives them back.

    Lightning's own epoch number is not used: it skips one after a checkpoint that was saved at the end of an epoch.
    """

    epoch = handed_out = 0  # of the pass in progress
    following = (0, 0)  # epoch and first batch of the pass to come

    def __init__(self, bags: BagMaker, order: EpochOrder, **options):
        self.order = order
        super().__init__(bags, sampler=order, **options)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        # A generator: a pass begins at its first batch, not with an iterator that is made and thrown away.
        self.epoch, self.handed_out = self.following
        self.following = (self.epoch + 1, 0)
        self.order.begin(self.epoch, self.handed_out)
        for batch in super().__iter__():
            self.handed_out += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "handed_out": self.handed_out}

    def load_state_dict(self, state: dict[str, int]) -> None:
        whole, start = divmod(state["handed_out"], len(self.order))
        self.epoch, self.handed_out = self.following = (state["epoch"] + whole, start)
