"""The moving average of the weights is Lightning's own, up to rounding."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch.utils.data import DataLoader

from grn.training.averaging import MovingAverage


class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def training_step(self, batch, index):
        self.seen += len(batch)
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)


def test_the_moving_average_is_that_of_lightning_up_to_rounding(tmp_path):
    """At the end, and in a checkpoint beside the latest weights."""
    kept = []
    for averaging in (MovingAverage(0.9), EMAWeightAveraging(decay=0.9, use_buffers=False)):
        line, folder = Line(), tmp_path / type(averaging).__name__
        saving = ModelCheckpoint(folder, filename="one", every_n_train_steps=5)
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        options = {"accelerator": "cpu", "max_steps": 7, "callbacks": [averaging, saving]}
        rows = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
        L.Trainer(**options, **quiet).fit(line, DataLoader(rows, batch_size=4))
        saved = torch.load(folder / "one.ckpt", weights_only=False)
        parts = ("state_dict", "current_model_state", "global_step")
        kept.append([line.state_dict(), *(saved[part] for part in parts)])
    assert kept[0][-1] == 5
    torch.testing.assert_close(kept[0], kept[1], rtol=1e-5, atol=1e-7)
