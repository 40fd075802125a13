"""How far do differences between states of cells count as regulation? Cells that were held out tell.

Cells of different states (types, for example) have different levels of their genes. Where these differences come from
regulators, they tell of slopes what differences between cells of one state tell only with noise. Where they come from
what the states are made of, as in blood, they mislead. Least squares takes any part of them: of each state's mean it
leaves a part of its way to the mean of all cells in the cells, from none (0: within states) to all (1: as if there were
no states). That is a penalty on what states have for themselves. The part that counts is the one whose slopes predict
best how unseen cells differ from others of their known state, if better than none by more than chance.

Letters: C cells, N genes, R regulators, S states, n targets, L parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grn.regulation.cell_table import CellTable
from grn.regulation.exact import products
from grn.regulation.penalties import OPERATIONS, ridge_penalties

PARTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # that are tried
CHANCE = 3.0  # standard errors, over targets and folds, by which a part must lower the error
GENES = 512  # targets that are enough to decide
MOST = 4096  # regulators; with more, differences between states do not count


@dataclass(frozen=True)
class Levels:
    """part: of the differences between states that counts.   without, with_part: squared error of held-out cells within
    their states, in variances, with none and with the part that predicts best.   best: that part."""

    part: float
    without: float
    with_part: float
    best: float

    def summary(self) -> str:
        errors = f"error {self.with_part:.4f} with {self.best:.0%} of them and {self.without:.4f} without"
        if self.part:
            return f"Differences between states count as regulation, as they help to predict unseen cells ({errors})."
        return (
            "Differences between states do not count as regulation: they may be composition, and do not help to predict "
            f"unseen cells by more than chance ({errors})."
        )


def levels_of(table: CellTable, fold: np.ndarray) -> Levels | None:
    """What held-out cells say; None with one state, one gene, or too many regulators. fold [C].

    Where every gene regulates, half of the genes, and at most GENES, are explained by the others: none by itself.
    """
    states, regulators = table.states.shape[1], len(table.regulators)
    others = np.setdiff1d(np.arange(table.multiplicity.shape[1]), table.regulators)
    most = GENES if len(others) else min(GENES, regulators // 2)
    genes = np.random.default_rng(0).permutation(others if len(others) else table.regulators)[:most]
    if states < 2 or regulators > MOST or not len(genes):
        return None
    read = torch.as_tensor(~np.isin(table.regulators, genes), device=table.inputs.device)
    x, y = table.inputs[:, :-1][:, read].double(), table.targets(genes).double()
    x = torch.cat([x, table.inputs[:, -1:].double()], 1)  # the depth
    share = table.membership.double()
    folds = range(5) if len(x) * x.shape[1] ** 2 < OPERATIONS / 10 else range(1)
    errors = torch.cat([_errors(x, y, share, torch.as_tensor(fold == each, device=x.device)) for each in folds], 1)
    mean = errors.mean(1)
    best = int(mean.argmin())
    gain = errors[0] - errors[best]
    # Targets of one fold share its cells, so that a fold counts once for each target, and never less than the folds do.
    helps = best > 0 and float(gain.mean()) > CHANCE * float(gain.std()) / len(gain) ** 0.5
    return Levels(PARTS[best] if helps else 0.0, float(mean[0]), float(mean[max(best, 1)]), PARTS[max(best, 1)])


def _errors(x: Tensor, y: Tensor, share: Tensor, judged: Tensor) -> Tensor:
    """Errors of the judged cells around the means of their states, [L, n] in variances of each target, by the best ridge
    regression with each part of the differences between states. x [C, K], y [C, n], share [C, S]."""
    own = share[~judged]
    size = own.sum(0)
    means = [(own.T @ each[~judged]) / size[:, None].clamp(min=1e-9) for each in (x, y)]
    x_within, y_within = (each - share @ mean for each, mean in zip((x, y), means, strict=True))
    between = [mean - (size / size.sum()) @ mean for mean in means]  # [S, K], [S, n]
    x_own, y_own, x_judged, y_judged = x_within[~judged], y_within[~judged], x_within[judged], y_within[judged]
    both, common = products(x_own, x_own), own.T @ own
    with_share, to_share = own.T @ x_own, own.T @ y_own  # 0 where cells have one state each
    cross = products(x_own, y_own)
    variance = y_judged.square().mean(0).clamp(min=1e-9)
    found = []
    for part in PARTS:
        x_of, y_of = (part * each for each in between)
        mixed = x_of.T @ with_share
        gram = both + mixed + mixed.T + x_of.T @ common @ x_of
        sums = cross + x_of.T @ to_share + with_share.T @ y_of + x_of.T @ common @ y_of
        unit = (gram.diagonal() / len(own)).sqrt().clamp(min=1e-6)
        values, vectors = torch.linalg.eigh(gram / (unit[:, None] * unit))
        rotated, read = vectors.T @ (sums / unit[:, None]), (x_judged / unit) @ vectors
        tried = [
            (y_judged - read @ (rotated / (values[:, None].clamp(min=0) + lam))).square().mean(0) / variance
            for lam in ridge_penalties(len(own))
        ]
        found.append(min(tried, key=lambda each: float(each.mean())))
    return torch.stack(found)


def state_levels(multiplicity, states):
    """Mean multiplicity of each gene in each state, [S, N]; 0 in a state without cells.

    multiplicity [C, N] and states [C, S]: sparse or dense arrays, or tensors.
    """
    size = states.sum(0)
    return (states / (size + (size == 0))).T @ multiplicity
