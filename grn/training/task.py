"""The model as a LightningModule: one step, one optimiser, one schedule."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import Optimizer

from grn.bags import Batch
from grn.cells.loading.batches import STEPS, state_of
from grn.config.schema import ObjectivesConfig, TrainerConfig
from grn.model.objectives import (
    Draw,
    Judged,
    divisors,
    genes_of_step,
    judged_genes,
    labelled,
    learns_genes,
    masked_multiplicity,
    of_cells,
    readers_cells,
    with_tokens,
)
from grn.model.regulation import Model
from grn.runtime.errors import TrainingDiverged
from grn.training.averaging import MovingAverage
from grn.training.calibration import opened_at
from grn.training.finite import FiniteCheck, Step
from grn.training.metrics import SumOfJudged
from grn.training.recorded import Recorder
from grn.training.together import MeanGradients, mean_over_processes, means_over_processes
from grn.training.update import Update

WARMUP = 0.05  # share of the steps over which the learning rate rises
# Learning rate of the signed blocks, as a share of the trainer's: they start at a minimum, and
# larger steps only add noise.
OF_BLOCKS = 0.3
# of penalties that held-out cells choose (MOST); steps for larger ones would not get anywhere
STEEPEST = 10.0
# Learning rate and weight decay of the basal gene, as shares of the trainer's.
OF_BASAL = (0.4, 1.0)


class Task(L.LightningModule):
    """Trains a Model on its objectives; logs `train/*` and `validation/*`.

    Until step `opened`, a member of the identity token does not learn from the cells of its fold;
    these then say what it counts (calibration.py), and it learns from them, too. What reads the
    regulators never learns from them: they choose the step whose weights are kept.
    """

    of_genes: Tensor

    def __init__(
        self, model: Model, objectives: ObjectivesConfig, trainer: TrainerConfig, total_steps: int
    ):
        super().__init__()
        self.model = model
        self.objectives = objectives
        self.settings = trainer
        self.total_steps = total_steps
        self.log_every = min(trainer.validate_every, total_steps)
        # Types alone: nothing else could choose the step, so that members never learn from their
        # folds.
        self.opened = opened_at(total_steps) if model.genes_train else total_steps + 1
        self.judged = SumOfJudged(
            len(model.held_out) if model.genes_train else len(model.identity.held_out)
        )
        self.finite_check = FiniteCheck()
        reader = model.identity
        kind = torch.arange(reader.shape.members) % reader.kinds
        self.register_buffer("of_genes", torch.tensor(reader.of_genes)[kind], persistent=False)
        # losses by name, each of the latest step that had it
        self.latest: dict[str, Tensor | float] = {}
        # the error of unseen cells before the first step, and whether genes have stopped learning
        self.at_start, self.settled = math.inf, False

    def losses(
        self, batch: Batch, by: dict[str, Tensor], opened: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a step, which members share out evenly, and its parts.

        Parts are by name, of an average member.

        by: `divisors`, the mean over processes; empty: those of this batch.
        opened: whether members of the identity token learn from the cells of their folds.
        """
        model, objectives = self.model, self.objectives
        by = by or divisors(batch, model, opened)
        parts: dict[str, Tensor] = {}
        total: list[Tensor] = []
        members = model.config.members
        if learns_genes(batch, model):
            draw = Draw.of(model, len(batch.cells), objectives.masked_multiplicity.fraction)
            error, shrink = masked_multiplicity(batch, model, draw)
            error = error / by["masked_multiplicity"].clamp(min=1e-9)
            parts |= {"masked_multiplicity": error / members, "penalty": shrink / members}
            total.append(objectives.masked_multiplicity.weight * (error + shrink))
        if batch.kept is not None:
            sums = of_cells(
                batch, model, readers_cells(batch, model, opened), genes=model.genes_train
            )
            means = {
                name: each / torch.where(by[name] > 0, by[name], 1) for name, each in sums.items()
            }
            total.append(self.of_members(means).sum())
            parts |= {name: mean.mean() for name, mean in means.items()}
        return torch.stack(total).sum(), parts

    def of_members(self, means: dict[str, Tensor]) -> Tensor:
        """Return the identity token's loss of each member, [P]: genes shape the summaries of every
        second one more.
        """
        if "cell_type" not in means:
            return means["genes"]
        labels = self.objectives.cell_type.weight * means["cell_type"]
        return (
            (labels + self.of_genes * means["genes"]) / (1 + self.of_genes)
            if "genes" in means
            else labels
        )

    def on_train_start(self) -> None:
        parameters: list[Tensor] = [each for each in self.parameters() if each.requires_grad]
        callbacks: list[L.Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        self.averages = [each for each in callbacks if isinstance(each, MovingAverage)]
        update = None
        # others have hooks of their own
        if isinstance(self.trainer.strategy, (SingleDeviceStrategy, MeanGradients)):
            # the same number in all processes, which stop learning genes together
            error = torch.tensor(self.at_start, device=self.device)
            self.at_start = float(mean_over_processes(error))
            follow = [partial(each.follow, self) for each in self.averages]
            update = Update(self.trainer.optimizers[0], self.trainer.world_size, follow)
        else:
            self.at_start = math.inf
        self.recorder = Recorder(self.losses, parameters, update)

    def on_train_batch_start(self, batch: Batch, index: int) -> None:
        """Seed torch by step and process: a resumed run draws what it would have drawn without the
        interruption.
        """
        draws = state_of(self.settings.seed, STEPS, self.global_rank, self.global_step) % 2**64
        torch.default_generator.manual_seed(draws)
        # torch.manual_seed would look for every other kind of device, too: a millisecond
        if batch.cells.is_cuda:
            torch.cuda.manual_seed(draws)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        read = batch.bags.multiplicity
        if read.device.type == "cpu" and not read.isfinite().all():
            self.refuse(Step(self.global_step, batch.cells, torch.tensor([False, True])))
        opened = self.global_step >= self.opened
        # One process leaves them to the losses, where they are recorded.
        counts = divisors(batch, self.model, opened) if self.trainer.world_size > 1 else {}
        by = dict(zip(counts, means_over_processes(counts.values()), strict=True))
        if self.settled and learns_genes(batch, self.model):
            loss, parts = self.recorder.nothing(read)
        else:
            loss, parts = self.recorder(with_tokens(batch, self.model), by, opened)
        self.batch, self.loss = batch, loss.detach()
        self.latest |= {name: mean.detach() for name, mean in parts.items()}
        if (self.global_step + 1) % self.log_every == 0:  # the losses of the whole batch
            logged = {"train/loss": self.loss} | {
                f"train/{name}_loss": mean for name, mean in self.latest.items()
            }
            means = mean_over_processes(
                torch.stack([torch.as_tensor(each).to(loss) for each in logged.values()])
            )
            self.log_dict(dict(zip(logged, means, strict=True)), batch_size=len(batch.cells))
        return loss

    def backward(self, loss: Tensor, *_: Any) -> None:
        self.recorder.backward(loss)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["latest"] = {name: float(mean) for name, mean in self.latest.items()}
        checkpoint["settled"] = self.settled

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.latest = dict(checkpoint["latest"])
        self.settled = checkpoint["settled"]

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Check or take the step when all processes have shared their gradients, before the
        optimiser.

        Nothing is clipped: members share the norm, and Adam's steps do not depend on the size of
        gradients. A recorded step moves the parameters here, and leaves no gradients to the
        optimiser.
        """
        if self.recorder.latest is not None:
            finite = self.recorder.step()
            for each in self.averages:
                each.followed(self.global_step + 1)
            self.refuse(self.finite_check.read_later(self.global_step, self.batch.cells, finite))
            return
        gradients = [
            each.grad
            for group in optimizer.param_groups
            for each in group["params"]
            if each.grad is not None
        ]
        norm = nn.utils.get_total_norm(gradients).to(self.loss)
        # Before the optimiser steps: the parameters are still good.
        self.refuse(
            self.finite_check.next(self.global_step, self.batch.cells, self.loss, norm, optimizer)
        )

    def refuse(self, step: Step | None) -> None:
        """Raise TrainingDiverged where the loss or the gradient of this step is not finite."""
        problem = None if step is None else step.problem()
        if step is None or problem is None:
            return
        cells = ", ".join(str(int(cell)) for cell in step.cells[:5])
        raise TrainingDiverged(
            f"The {problem} is not finite at step {step.number} (batch of the cells in rows "
            f"{cells}, ...); checkpoints of earlier steps are kept",
            field="trainer.learning_rate",
            advice=f"lower {{field}} ({self.settings.learning_rate:g}), or look for extreme values "
            f"in these cells",
        )

    def on_train_end(self) -> None:
        self.refuse(self.finite_check.last())

    def on_validation_epoch_start(self) -> None:
        self.refuse(self.finite_check.last())
        self.judged.reset()

    def validation_step(self, batch: Batch, index: int) -> None:
        """Add the error of cells by the members that have not learned from them: of their genes,
        else of their labels.
        """
        if self.model.genes_train:
            self.judged.update(judged_genes(batch, self.model))
        else:
            unseen = 1 - readers_cells(batch, self.model)
            loss = of_cells(batch, self.model, unseen, genes=False)["cell_type"]
            nothing = torch.zeros_like(loss)
            self.judged.update(Judged(labelled(batch, unseen).sum(1), loss, nothing, nothing))

    def on_validation_epoch_end(self) -> None:
        # Without cells that a member has not seen, the last step is as good as any.
        error = Judged(*self.judged.compute()).error()
        self.log_dict({"validation/loss": error}, sync_dist=False)
        # Blocks start at a minimum: what has not helped by now will hardly help later, and these
        # steps are nearly all of the time where regulators are many.
        if self.model.genes_train and float(error) >= self.at_start:
            self.settled = True

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return AdamW, with a linear warm-up, then a cosine to zero over `total_steps`."""
        model, rate, decay = self.model, self.settings.learning_rate, self.settings.weight_decay
        # A gene that is in a share of the steps alone is learned from fewer cells: smaller steps
        # average over more.
        of_blocks = OF_BLOCKS * rate * math.sqrt(sum(genes_of_step(model)) / model.genes)
        # A penalty makes slopes 1 / (1 + lambda) as large and their loss as much steeper: so much
        # smaller steps take as many to get there, and leave noise of the same share of the slopes.
        steeper = [
            1 + min(float(lam.mean()), STEEPEST)
            for lam in (model.penalty[-1:, 0], model.penalty[:-1, 0])
        ]
        groups = [
            {"params": list(block.parameters()), "lr": of_blocks / times, "weight_decay": 0.0}
            for block, times in zip(model.blocks, steeper, strict=model.regulates)
        ]
        rates = {"identity": model.identity.rates} | (
            {"basal": OF_BASAL} if model.regulates else {}
        )
        groups += [
            {
                "params": list(getattr(model, name).parameters()),
                "lr": rate * share,
                "weight_decay": decay * part,
            }
            for name, (share, part) in rates.items()
        ]
        # Fused: one pass over all parameters. Not in 16-mixed, where a fused optimiser would
        # unscale gradients itself.
        fused = self.settings.precision != "16-mixed"
        optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=fused)
        optimizer.register_load_state_dict_pre_hook(as_fused_here)
        warmup = max(1, round(WARMUP * self.total_steps))

        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: warmup_cosine(step, self.total_steps, warmup)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def warmup_cosine(step: int, steps: int, warmup: int) -> float:
    """Return what the learning rate is multiplied by in a step, 0 to 1: a linear warm-up of
    `warmup` steps, then a cosine that ends at 0 after `steps` steps.
    """
    after = min(max(0, step - warmup) / max(1, steps - warmup), 1.0)
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * after))


def as_fused_here(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a checkpoint with this optimiser's own choice of `fused`: another machine
    may have written it.
    """
    fused = optimizer.defaults["fused"]
    return state | {"param_groups": [group | {"fused": fused} for group in state["param_groups"]]}
