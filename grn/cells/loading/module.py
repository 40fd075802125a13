"""Data loaders for Lightning. They divide the cells over processes themselves, so that its Trainer
needs `use_distributed_sampler=False`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from grn.bags import Batch
from grn.cells.atlas import Atlas
from grn.cells.cells import Cells
from grn.cells.loading.batches import BagMaker
from grn.cells.loading.order import EpochOrder, Request, once_in_order
from grn.cells.loading.thinning import Thinning
from grn.cells.preprocessing.split import Split
from grn.runtime.processes import ALONE, Processes
from grn.runtime.threads import ahead


class CellsDataModule(LightningDataModule):
    """The batches of a training, its validations and its test. Training batches hide other genes in
    each epoch; the others hide none.

    cells, split: of the data set.
    batch_size: cells of a step in each process.
    states [C, S], fold [C], read_every, most_read: see BagMaker.
    judged: rows of the training cells that validate, each by the member that has not learned from
        it; None: all training cells.
    states_are_known: whether test cells have states, too; states that were found in the genes are
        not known of them.
    multiplicity: as in DataConfig; None: no cell loses counts in training.
    device: that makes the training batches, unless there are workers.
    atlas: the cells to train on, where `cells` are a sample of them.
    """

    def __init__(
        self,
        cells: Cells,
        split: Split,
        *,
        batch_size: int,
        seed: int,
        states: np.ndarray | None = None,
        fold: np.ndarray | None = None,
        judged: np.ndarray | None = None,
        states_are_known: bool = True,
        multiplicity: str | None = None,
        read_every: int = 1,
        most_read: int | None = None,
        num_workers: int = 0,
        device: torch.device | str = "cpu",
        atlas: Atlas | None = None,
    ):
        super().__init__()
        self.split, self.batch_size, self.seed = split, batch_size, seed
        self.judged = split.train if judged is None else judged
        # batch_size None: a sampler's item is already a whole batch; workers persist, as an epoch
        # may be a few batches.
        self.options: dict[str, Any] = {
            "batch_size": None,
            "num_workers": num_workers,
            "persistent_workers": num_workers > 0,
        }
        thinning = None if multiplicity is None else Thinning.of(cells, multiplicity)
        how = seed, True, read_every, most_read, thinning, "cpu" if num_workers else device
        if atlas is None:
            self.training, self.rows = BagMaker(cells, states, fold, *how), split.train
        else:  # a thread of its own reads the file
            self.training, self.rows = BagMaker(atlas, atlas.states, atlas.fold, *how), atlas.rows
            self.options = {"batch_size": None}
        known = states if states_are_known else None
        self.validation, self.test = BagMaker(cells, known, fold), BagMaker(cells, known)

    def steps_per_epoch(self, world: int = 1) -> int:
        """Return the optimiser's steps in one epoch of `world` processes. They follow from the data
        alone: the schedule must not change when a run resumes.
        """
        return len(
            EpochOrder(
                self.rows, self.batch_size, self.seed, 0, world, times=self.training.read_every
            )
        )

    def train_dataloader(self) -> DataLoader[Batch]:
        buffered = isinstance(self.training.cells, Atlas)
        order = EpochOrder(
            self.rows, self.batch_size, self.seed, *self._rank(), buffered, self.training.read_every
        )
        return ResumableLoader(self.training, order, **self.options)

    def val_dataloader(self) -> DataLoader[Batch]:
        return self._once(
            self.validation, once_in_order(self.judged, self.batch_size, *self._rank())
        )

    def test_dataloader(self, processes: Processes = ALONE) -> DataLoader[Batch]:
        """Return the batches of test cells of this process. All processes together have the same
        batches, however many they are.
        """
        batches = once_in_order(self.split.test, self.batch_size)
        return self._once(self.test, batches[processes.share(len(batches), 1)])

    def _once(self, bags: BagMaker, batches: list[Request]) -> DataLoader[Batch]:
        """Return a loader that makes each of these batches once."""
        return DataLoader(bags, sampler=batches, batch_size=None)  # slices: no need of workers

    def _rank(self) -> tuple[int, int]:
        """Return the rank of this process, and how many there are."""
        return (
            (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        )


@contextmanager
def without_main_module() -> Iterator[None]:
    """Let processes that are started within the context leave out the import of the main module: a
    worker needs nothing of the user's script.

    Where processes are spawned (macOS, Windows) or served (Linux from Python 3.14), Python has each
    of them import it. A script without `if __name__ == "__main__"` would train once more in each
    worker, which Python refuses, and training would wait for workers that have died.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class ResumableLoader(DataLoader[Batch]):
    """A loader that counts its epochs and batches. Lightning saves the counts in checkpoints and
    restores them.

    Lightning's own epoch number is not used: it skips one after a checkpoint that was saved at the
    end of an epoch.
    """

    epoch = handed_out = 0  # of the current pass: its number, and the batches that it has yielded
    following = (0, 0)  # of the next pass: its number, and its first batch

    def __init__(self, bags: BagMaker, order: EpochOrder, **options: Any):
        self.order = order
        super().__init__(bags, sampler=order, **options)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        # A generator: a pass begins when its first batch is taken; Lightning makes iterators that
        # it never uses.
        self.epoch, self.handed_out = self.following
        self.following = (self.epoch + 1, 0)
        self.order.epoch, self.order.start = self.epoch, self.handed_out
        with without_main_module():
            batches = super().__iter__()
        for batch in ahead(batches):
            self.handed_out += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "handed_out": self.handed_out}

    def load_state_dict(self, state: dict[str, int]) -> None:
        whole, start = divmod(state["handed_out"], len(self.order))
        self.epoch, self.handed_out = self.following = (state["epoch"] + whole, start)
