"""Loaders under Lightning: order, fixed validation masks, exact resume."""

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

from grn.cells.load import load_cells
from grn.cells.loading.module import CellsDataModule
from grn.config.schema import DataConfig, SimulatedConfig

SIMULATED = SimulatedConfig(cells=120, genes=20, regulators=4)


def module(num_workers: int = 0, bags: str = "dense") -> CellsDataModule:
    cells, split = load_cells(DataConfig(path="simulated:", simulated=SIMULATED, label_key="cell_type"))
    return CellsDataModule(cells, split, batch_size=16, masked_fraction=0.3, seed=1, bags=bags, num_workers=num_workers)


class Recorder(L.LightningModule):
    """Records each training batch; it has one weight, which is not trained."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.seen = []

    def training_step(self, batch, index):
        self.seen.append((tuple(batch.cells.tolist()), tuple(batch.masked.sum(1).tolist())))
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
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary", "use_distributed_sampler")
    options = dict.fromkeys(off, False) | {"accelerator": "cpu", "precision": "bf16-mixed", "callbacks": callback}
    trainer = L.Trainer(max_steps=steps, max_epochs=-1, **options)
    trainer.fit(recorder, datamodule=module(num_workers), ckpt_path=resume, weights_only=resume and False)
    return recorder.seen


@pytest.fixture(scope="module")
def uninterrupted() -> list:
    return fit(18)


def test_epochs_differ_in_order_and_masks(uninterrupted):
    steps = module().steps_per_epoch()
    assert steps == 5
    first, second = uninterrupted[:steps], uninterrupted[steps : 2 * steps]
    assert len({cell for cells, _ in first for cell in cells}) == steps * 16, "no cell twice in an epoch"
    assert [cells for cells, _ in first] != [cells for cells, _ in second]
    masks = [dict(pair for batch in epoch for pair in zip(*batch, strict=True)) for epoch in (first, second)]
    both = masks[0].keys() & masks[1].keys()
    assert sum(masks[0][cell] != masks[1][cell] for cell in both) > len(both) / 2


@pytest.mark.parametrize(
    ("hook", "step"),
    [("on_train_batch_end", 5), ("on_train_batch_end", 8), ("on_validation_end", 10), ("on_train_epoch_end", 10)],
)
def test_a_resumed_run_sees_the_batches_that_were_left(uninterrupted, tmp_path, hook, step):
    path = str(tmp_path / "saved.ckpt")
    assert fit(18, callback=save_at(step, hook, path)) == uninterrupted
    assert fit(18, resume=path) == uninterrupted[step:]


@pytest.mark.slow
def test_workers_change_nothing(uninterrupted, tmp_path):
    path = str(tmp_path / "saved.ckpt")
    assert fit(18, num_workers=2, callback=save_at(7, "on_train_batch_end", path)) == uninterrupted
    assert fit(18, num_workers=2, resume=path) == uninterrupted[7:]


@pytest.mark.parametrize("bags", ["dense", "packed"])
def test_validation_is_masked_the_same_way_each_time(bags):
    data = module(bags=bags)
    once, again = (list(data.val_dataloader()) for _ in range(2))
    assert all(torch.equal(one.masked, other.masked) for one, other in zip(once, again, strict=True))
    assert any(batch.masked.any() for batch in once)
    assert once[0].bags.packed == (bags == "packed")
    for loader, rows in ((once, data.split.validation), (data.test_dataloader(), data.split.test)):
        np.testing.assert_array_equal(torch.cat([batch.cells for batch in loader]), rows)


def batches(data: CellsDataModule, rank: int, world: int) -> list:
    data.trainer = type("Trainer", (), {"global_rank": rank, "world_size": world})()
    return [*data.train_dataloader(), *data.val_dataloader()]


@pytest.mark.parametrize("bags", ["dense", "packed"])
def test_processes_that_share_genes_have_the_same_cells(bags):
    """Of four processes, the first two split the genes of the cells that the first of two processes has."""
    data = module(bags=bags)
    whole = batches(data, 0, 2)
    test = list(data.test_dataloader())
    data.gene_parallel = 2
    assert data.steps_per_epoch(world=4) == 2
    by_rank = [batches(data, rank, 4) for rank in range(2)]
    for batch, *halves in zip(whole, *by_rank, strict=True):
        assert all(torch.equal(half.cells, batch.cells) for half in halves)
        assert all(torch.equal(half.bags.regulators, batch.bags.regulators) for half in halves)
        for part, half in enumerate(halves):
            expected = batch.part_of_genes(part, 2)
            assert torch.equal(half.multiplicity, expected.multiplicity) and torch.equal(half.masked, expected.masked)
            assert torch.equal(half.bags.genes, expected.bags.genes)
    for one, other in zip(test, data.test_dataloader(), strict=True):
        assert torch.equal(one.multiplicity, other.multiplicity), "one process tests on whole bags"
