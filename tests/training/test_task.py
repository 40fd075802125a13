"""Each step: the moving average of the weights, and steps that are not finite, which leave the parameters alone."""

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch.utils.data import DataLoader

from grn.training.finite import skip_unless_finite
from grn.training.task import MovingAverage, as_fused_here


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


def trained(bad: bool) -> torch.Tensor:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], fused=True)
    for step in range(3):
        weight.grad = torch.full((3,), torch.nan if bad and step == 1 else 1.0)
        skip_unless_finite(optimizer, weight.grad.isfinite())
        optimizer.step()
    return weight.detach()


def test_a_fused_optimiser_leaves_a_bad_step_out():
    good, skipped = trained(bad=False), trained(bad=True)
    assert skipped.isfinite().all() and (good < skipped).all() and (skipped < 1).all()


@pytest.mark.parametrize("fused", [None, True])
def test_a_checkpoint_of_another_machine_leaves_the_choice_of_fused_kernels_here(fused):
    """A checkpoint holds its machine's choice: without the hook, a run from a CPU could not go on where steps are told
    on the device to change nothing, as only fused kernels listen."""
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    there, here = (torch.optim.AdamW([w], fused=f) for w, f in zip(weights, (not fused or None, fused), strict=True))
    here.register_load_state_dict_pre_hook(as_fused_here)
    weights[0].grad, weights[1].grad = torch.ones(3), torch.ones(3)
    there.step()
    here.load_state_dict(there.state_dict())
    assert here.param_groups[0]["fused"] is fused
    if fused:
        skip_unless_finite(here, torch.tensor([False]))
    here.step()
    assert torch.equal(weights[1], torch.ones(3)) == bool(fused)
