"""What the members' cell types count, how sure they may be, the directions of X_grn, and what of a
training is kept: blocks, and how much of the context.

Half-way through training, labelled cells that members have not seen judge them; from then on the
members learn from these cells, too, as what they were kept for is known.

Letters: P members, C cells, K cell types, S width of a summary, D width of X_grn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from grn.bags import Batch
from grn.cells.loading.batches import BagMaker
from grn.cells.loading.order import once_in_order
from grn.model.objectives import Judged, judged_genes, summaries_of
from grn.model.regulation import Model
from grn.model.saved import round_as_saved
from grn.runtime.messages import Say

PRIOR = 4.0  # pulls the halves' importances to 1/2 each, as so many held-out cells would
CHUNK, MOST_AXES = (
    1024,
    4096,
)  # cells that are read at a time, and that the embedding's directions are computed from
GENES_OF = 128  # cells whose genes are predicted at a time


class Calibration(L.Callback):
    """Sets importances and held-out confidences before step `opened`.

    rows: the cells that judge.
    """

    def __init__(self, bags: BagMaker, rows: np.ndarray, opened: int, say: Say):
        self.bags, self.rows, self.opened, self.say = bags, rows, opened, say

    def on_train_batch_start(
        self, trainer: L.Trainer, task: L.LightningModule, batch: Batch, index: int
    ) -> None:
        if trainer.global_step == self.opened and len(self.rows):
            accuracy = judge(task.model, self.bags, self.rows)  # type: ignore[arg-type]
            if trainer.is_global_zero:
                self.say(
                    f"Cell types: accuracy {accuracy:.3f} on {len(self.rows)} cells that members "
                    "had not seen."
                )


@torch.no_grad()
def summaries_in(model: Model, bags: BagMaker, rows: np.ndarray) -> Tensor:
    """Summaries of cells with nothing hidden, [P, C, S], in the mode that predicts."""
    device, training = model.mean.device, model.training
    model.eval()
    found = [
        summaries_of(bags[request].to(device), model) for request in once_in_order(rows, CHUNK)
    ]
    model.train(training)
    return torch.cat(found, 1)


@torch.no_grad()
def judged_by_unseen(model: Model, bags: BagMaker, rows: np.ndarray) -> Judged:
    """Return the sums over cells that members have not learned from of their predictions of genes,
    in the mode that predicts.
    """
    training = model.training
    model.eval()
    found = [
        judged_genes(bags[request].to(model.mean.device), model)
        for request in once_in_order(rows, GENES_OF)
    ]
    model.train(training)
    return Judged(
        *(
            torch.stack([getattr(each, part.name) for each in found]).sum(0)
            for part in fields(Judged)
        )
    )


@torch.no_grad()
def keep_what_helped(
    model: Model, start: Mapping[str, Tensor], bags: BagMaker, rows: np.ndarray
) -> list[str]:
    """Put blocks that training did not improve back to where they started, and set how much of the
    context each member's predictions have; return sentences about what helped.

    The cells `rows` decide, by members that have not learned from them.

    start: the tensors of the signed blocks before training.
    """
    if not len(rows):
        return []
    lines = []
    trained = {name: tensor.clone() for name, tensor in model.blocks.state_dict().items()}
    found = judged_by_unseen(model, bags, rows)
    for number in range(len(model.blocks)):
        own = f"{number}."
        model.blocks.load_state_dict(
            {name: each for name, each in start.items() if name.startswith(own)}, strict=False
        )
        round_as_saved(model.blocks[number])  # as the trained ones are
        before = judged_by_unseen(model, bags, rows)
        if before.error() <= found.error():
            found = before
            lines.append(f"Training did not improve block {number + 1}, which keeps its start.")
        else:
            own_trained = {name: each for name, each in trained.items() if name.startswith(own)}
            model.blocks.load_state_dict(own_trained, strict=False)
    model.basal.gate.copy_(found.gate())
    return lines


@torch.no_grad()
def judge(model: Model, bags: BagMaker, rows: np.ndarray) -> float:
    """Set importance, confidence and right of the identity token; return the accuracy on the
    judging cells.
    """
    identity = model.identity
    log_odds = identity.of_members(summaries_in(model, bags, rows)).cpu()
    assert bags.fold is not None, "training has folds"
    fold, labels = torch.from_numpy(bags.fold[rows]), torch.from_numpy(bags.cells.labels[rows])
    held_out, members = identity.held_out.cpu(), identity.shape.members
    kind = torch.arange(members) % identity.kinds
    of_kinds = []
    for each in kind.unique():
        unseen = ((held_out[:, None] == fold) & (kind == each)[:, None]).float()  # [P, C]
        of_kinds.append((unseen[..., None] * log_odds).sum(0) / unseen.sum(0).clamp(min=1)[:, None])
    both = torch.stack(of_kinds)
    importance = kind_importance(both, labels)
    of_members = [importance[int(each)] / (kind == each).sum() for each in kind]
    identity.importance.copy_(torch.stack(of_members))
    confidence, predicted = (importance[:, None, None] * both).sum(0).softmax(-1).max(-1)
    right = predicted == labels
    identity.confidence.copy_(confidence)
    identity.right.copy_(right)
    return float(right.float().mean())


def kind_importance(log_odds: Tensor, labels: Tensor) -> Tensor:
    """Return the weight of each kind's log probabilities, [kinds]: that of the least log loss on
    held-out cells, with a prior.

    log_odds [kinds, C, K], labels [C].
    """
    equal = torch.full((len(log_odds),), 1 / len(log_odds))
    log = equal.log().requires_grad_()
    optimizer = torch.optim.LBFGS([log], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            logits = (log.exp()[:, None, None] * log_odds).sum(0)
            total = (
                F.cross_entropy(logits, labels, reduction="sum")
                + PRIOR * (log.exp() - equal).square().sum()
            )
            total.backward()
        return total

    optimizer.step(loss)
    found = log.detach().exp()
    return found if torch.isfinite(found).all() else equal


@torch.no_grad()
def set_axes(model: Model, bags: BagMaker, rows: np.ndarray) -> None:
    """Set X_grn: the projection of the members' summaries to their leading directions in some of
    the cells `rows`.
    """
    some = np.sort(np.random.default_rng(0).permutation(rows)[:MOST_AXES])
    summaries = summaries_in(model, bags, some).transpose(0, 1).flatten(1).cpu()
    centre = summaries.mean(0)
    values = (summaries - centre).double()
    _, directions = torch.linalg.eigh(values.T @ values)
    axes = directions.flip(1)[:, : model.identity.axes.shape[1]].float()
    # A direction and its opposite are as good: the largest entry decides, so that two machines
    # agree.
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    model.identity.centre.copy_(centre)
    model.identity.axes.copy_(axes)


def opened_at(total_steps: int) -> int:
    """Return the step from which members learn from the cells that have judged them."""
    return math.ceil(total_steps / 2)
