"""The moving average of the weights."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch.utils.data import DataLoader

from grn.training.task import MovingAverage


class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))

    def training_step(self, batch, index):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)


def test_the_moving_average_is_that_of_lightning_to_the_last_bit():
    kept = []
    for averaging in (MovingAverage(0.9), EMAWeightAveraging(decay=0.9, use_buffers=False)):
        line = Line()
        trainer = L.Trainer(
            accelerator="cpu", max_steps=7, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[averaging],
        )  # fmt: skip
        rows = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
        trainer.fit(line, DataLoader(rows, batch_size=4))
        kept.append(line.state_dict() | {"steps": averaging._average_model.n_averaged})
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[1])
    assert kept[0]["steps"] == 7
