"""Data loaders for Lightning. They divide the cells over processes themselves: `use_distributed_sampler=False`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from grn.bags import Batch
from grn.cells.cells import Cells
from grn.cells.loading.batches import EVALUATE, TRAIN, BagMaker, is_packed
from grn.cells.loading.order import EpochOrder, ParallelRank, once_in_order
from grn.cells.preprocessing.split import Split


class CellsDataModule(LightningDataModule):
    """Training batches get new masks in each epoch; validation and test batches always get the same masks.

    gene_parallel: number of processes that have the same cells and each a part of their genes (see ParallelRank).
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
        self.batch_size, self.seed, self.gene_parallel = batch_size, seed, gene_parallel
        # batch_size None: a sampler's item is already a whole batch; workers persist, as an epoch may be a few batches.
        self.options: dict = {"batch_size": None, "num_workers": num_workers, "persistent_workers": num_workers > 0}
        self.options["pin_memory"] = torch.cuda.is_available()
        packed = is_packed(bags, len(cells.vocabulary))
        self.training, self.evaluation = (
            BagMaker(cells, packed, masked_fraction, absent_fraction, seed, stream, with_regulators)
            for stream in (TRAIN, EVALUATE)
        )

    def steps_per_epoch(self, world: int = 1) -> int:
        """Optimiser steps of one pass, from the data alone: the schedule must not change when a run resumes."""
        return len(EpochOrder(self.split.train, self.batch_size, self.seed, 0, world // self.gene_parallel))

    def train_dataloader(self) -> DataLoader:
        rank = self._rank()
        order = EpochOrder(self.split.train, self.batch_size, self.seed, rank.replica, rank.replicas)
        return ResumableLoader(replace(self.training, part=rank.part, parts=rank.parts), order, **self.options)

    def val_dataloader(self) -> DataLoader:
        return self._once(self.split.validation, self._rank())

    def test_dataloader(self) -> DataLoader:
        """All test cells, and all their genes, in every process: one process computes the final metrics."""
        return self._once(self.split.test, ParallelRank())

    def _once(self, rows: np.ndarray, rank: ParallelRank) -> DataLoader:
        order = once_in_order(rows, self.batch_size, rank.replica, rank.replicas)
        bags = replace(self.evaluation, part=rank.part, parts=rank.parts)
        return DataLoader(bags, sampler=order, **self.options)

    def _rank(self) -> ParallelRank:
        if self.trainer is None:
            return ParallelRank()
        return ParallelRank.of(self.trainer.global_rank, self.trainer.world_size, self.gene_parallel)


class ResumableLoader(DataLoader):
    """A loader that counts its epochs and batches; Lightning saves the counts in checkpoints and restores them.

    Lightning's own epoch number is not used: it skips one after a checkpoint that was saved at the end of an epoch.
    """

    epoch = handed_out = 0  # of the current pass: its number, and the batches that it has yielded
    following = (0, 0)  # of the next pass: its number, and its first batch

    def __init__(self, bags: BagMaker, order: EpochOrder, **options):
        self.order = order
        super().__init__(bags, sampler=order, **options)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        # A generator: a pass begins when its first batch is taken; Lightning makes iterators that it never uses.
        self.epoch, self.handed_out = self.following
        self.following = (self.epoch + 1, 0)
        self.order.epoch, self.order.start = self.epoch, self.handed_out
        for batch in super().__iter__():
            self.handed_out += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "handed_out": self.handed_out}

    def load_state_dict(self, state: dict[str, int]) -> None:
        whole, start = divmod(state["handed_out"], len(self.order))
        self.epoch, self.handed_out = self.following = (state["epoch"] + whole, start)
