"""Loaders under Lightning: order, what is hidden, exact resume."""

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

from grn.cells.load import load_cells
from grn.cells.loading.module import CellsDataModule
from grn.config.schema import DataConfig, SimulatedConfig
from grn.runtime.processes import Processes

SIMULATED = SimulatedConfig(cells=120, genes=20, regulators=4)


def module(num_workers: int = 0, **options) -> CellsDataModule:
    cells, split = load_cells(
        DataConfig(path="simulated:", simulated=SIMULATED, label_key="cell_type")
    )
    options = {"multiplicity": "log1p_normalised", "num_workers": num_workers} | options
    return CellsDataModule(cells, split, batch_size=16, seed=1, **options)


class Recorder(L.LightningModule):
    """Records each training batch; it has one weight, which is not trained."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.seen = []

    def training_step(self, batch, index):
        self.seen.append((tuple(batch.cells.tolist()), tuple(batch.kept.sum(1).tolist())))
        return self.weight * batch.bags.multiplicity.mean()

    def validation_step(self, batch, index):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


def save_at(step: int, hook: str, path: str) -> L.Callback:
    def save(trainer, *_):
        if trainer.global_step == step:
            trainer.save_checkpoint(path)

    return LambdaCallback(**{hook: save})


def fit(steps: int, num_workers: int = 0, callback=None, resume: str | None = None) -> list:
    recorder = Recorder()
    off = (
        "logger",
        "enable_checkpointing",
        "enable_progress_bar",
        "enable_model_summary",
        "use_distributed_sampler",
    )
    options = dict.fromkeys(off, False) | {
        "accelerator": "cpu",
        "precision": "bf16-mixed",
        "callbacks": callback,
    }
    trainer = L.Trainer(max_steps=steps, max_epochs=-1, **options)
    trainer.fit(
        recorder, datamodule=module(num_workers), ckpt_path=resume, weights_only=resume and False
    )
    return recorder.seen


@pytest.fixture(scope="module")
def uninterrupted() -> list:
    return fit(20)


def test_epochs_differ_in_order_and_masks(uninterrupted):
    steps = module().steps_per_epoch()
    assert steps == 6
    first, second = uninterrupted[:steps], uninterrupted[steps : 2 * steps]
    assert len({cell for cells, _ in first for cell in cells}) == steps * 16, (
        "no cell twice in an epoch"
    )
    assert [cells for cells, _ in first] != [cells for cells, _ in second]
    masks = [
        dict(pair for batch in epoch for pair in zip(*batch, strict=True))
        for epoch in (first, second)
    ]
    both = masks[0].keys() & masks[1].keys()
    assert sum(masks[0][cell] != masks[1][cell] for cell in both) > len(both) / 2


@pytest.mark.parametrize(
    ("hook", "step"),
    [
        ("on_train_batch_end", 6),
        ("on_train_batch_end", 8),
        ("on_validation_end", 12),
        ("on_train_epoch_end", 12),
    ],
)
def test_a_resumed_run_sees_the_batches_that_were_left(uninterrupted, tmp_path, hook, step):
    path = str(tmp_path / "saved.ckpt")
    assert fit(20, callback=save_at(step, hook, path)) == uninterrupted
    assert fit(20, resume=path) == uninterrupted[step:]


@pytest.mark.slow
def test_workers_change_nothing(uninterrupted, tmp_path):
    path = str(tmp_path / "saved.ckpt")
    assert fit(20, num_workers=2, callback=save_at(7, "on_train_batch_end", path)) == uninterrupted
    assert fit(20, num_workers=2, resume=path) == uninterrupted[7:]


def test_validation_and_test_hide_nothing_and_know_what_they_may():
    """Found states come from the very genes that test cells are judged by."""
    fold, states = np.arange(120) % 5, np.eye(2, dtype=np.float32)[np.arange(120) % 2]
    for known in (True, False):
        data = module(states=states, fold=fold, judged=np.array([3, 9, 80]), states_are_known=known)
        judged, test, training = (
            list(each)
            for each in (data.val_dataloader(), data.test_dataloader(), data.train_dataloader())
        )
        for loader, rows in ((judged, [3, 9, 80]), (test, data.split.test)):
            np.testing.assert_array_equal(torch.cat([batch.cells for batch in loader]), rows)
            assert all(batch.kept is None and batch.seen is None for batch in loader)
        assert judged[0].fold.tolist() == [3, 4, 0] and (test[0].fold == -1).all()
        assert (test[0].bags.states is not None) == known
        assert all(
            torch.equal(each.bags.states, torch.from_numpy(states[each.cells])) for each in training
        )
        assert all(each.kept is not None and each.seen is not None for each in training)


def test_processes_share_training_validation_and_test_cells():
    data = module()
    alone = [cell for batch in data.test_dataloader() for cell in batch.cells.tolist()]
    seen = []
    for rank in range(2):
        data.trainer = type("Trainer", (), {"global_rank": rank, "world_size": 2})()
        seen.append(
            [
                [cell for batch in each for cell in batch.cells.tolist()]
                for each in (
                    data.train_dataloader(),
                    data.val_dataloader(),
                    data.test_dataloader(Processes(rank, 2)),
                )
            ]
        )
    assert data.steps_per_epoch(world=2) == 3
    for one, other in zip(*seen, strict=True):
        assert not set(one) & set(other)
    assert seen[0][1] + seen[1][1] == data.split.train.tolist() and seen[0][2] + seen[1][2] == alone
