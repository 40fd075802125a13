"""Where training starts: at the exact solutions of its linear problems.

Signed blocks start at the minimiser of their shadow (penalties.py, exact.py), each member's own:
its fold left out, its penalty, its states. The scores by which the basal gene tells states start as
a logistic regression. So training has only to find what is not linear, and it cannot lose what
least squares had found.

Letters: P members, C cells, N genes, R regulators, K = R + 1 keys, S states, n targets at a time.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from grn.evidence.cell_table import CellTable
from grn.evidence.exact import Solution, solve
from grn.evidence.penalties import Shadow
from grn.model.penalty import Penalty
from grn.model.regulation import Model

TARGETS = 1024  # that are solved at a time
OF_STATES = 5000  # cells that tell how states are recognised
DECAYS = (1.0, 10.0, 100.0, 1000.0)  # penalties of their logistic regression that are tried
LEAST_T = 1e-3  # below it the penalty is ridge's


@torch.no_grad()
def start_blocks(model: Model, table: CellTable, fold: np.ndarray) -> float:
    """Set the signed blocks of every member to the exact solution with its penalties, from the
    cells that it learns from.

    Return the share of the squared slopes that heads are too narrow for, the largest over members
    and blocks.

    table: the training cells, in the model's units. fold [C].
    """
    left_out = 0.0
    first, second = model.blocks
    among, *members = penalties_of(model, fold)
    targets = model.targets.numpy()
    for member, (held_out, penalty) in enumerate(
        zip(model.held_out.tolist(), members, strict=True)
    ):
        shadow = Shadow(table, fold, held_out, genes=targets[:0])
        known = shadow.among(among)
        left_out = max(left_out, first.start(member, known.shared.mT.float().cpu(), None))
        if model.layered:
            shadow.correct(known, model.counting.to(shadow.x), model.unit.to(shadow.x))
        if len(targets):
            found = solved_in_parts(shadow, targets, penalty, model.prior)
            deviations = None if found.deviations is None else found.deviations.mT.float().cpu()
            left_out = max(
                left_out, second.start(member, found.shared.mT.float().cpu(), deviations)
            )
    return left_out


@torch.no_grad()
def start_states(model: Model, table: CellTable, fold: np.ndarray) -> None:
    """Set the scores of states to those of a logistic regression on the regulators, of each member
    from the cells that it learns from. The cells that the first member does not learn from choose
    its penalty.
    """
    if table.states.shape[1] < 2:
        return
    some = np.sort(np.random.default_rng(0).permutation(len(table))[:OF_STATES])
    centre = (model.share @ model.blocks[0].centre).mean(0).to(table.device)
    x, share = table.inputs[some] - centre, table.membership[some]
    decay = None
    for member, held_out in enumerate(model.held_out.tolist()):
        own = torch.as_tensor(fold[some] != held_out, device=table.device)
        start = None
        if decay is None and bool((~own).any()):
            tried = []
            for each in DECAYS:
                start = logistic(x[own], share[own], each, start)
                wrong = -(share[~own] * (x[~own] @ start[:-1] + start[-1]).log_softmax(1)).sum()
                tried.append((float(wrong), each))
            decay = min(tried)[1]
        found = logistic(x[own], share[own], decay or DECAYS[-1], start).cpu()
        model.basal.state[member], model.basal.state_bias[member] = found[:-1], found[-1:]


def logistic(x: Tensor, share: Tensor, decay: float, start: Tensor | None = None) -> Tensor:
    """Weights and, last, intercepts [K + 1, S] with which x [C, K] predicts memberships [C, S]: the
    least cross entropy with decay / 2 times the squared weights.
    """
    weights = x.new_zeros(x.shape[1] + 1, share.shape[1]) if start is None else start.clone()
    weights.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=100, tolerance_grad=1e-3, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            said = (x @ weights[:-1] + weights[-1]).log_softmax(1)
            total = decay / 2 * weights[:-1].square().sum() - (share * said).sum()
            total.backward()
        return total

    optimizer.step(loss)
    return weights.detach()


def penalties_of(model: Model, fold: np.ndarray) -> list[Penalty]:
    """Those of block 1 and of block 2 of each member, over all cells that a member learns from."""
    learned = [int((fold != held_out).sum()) for held_out in model.held_out.tolist()]
    of_members = zip(model.penalty.tolist(), [*learned, float(np.mean(learned))], strict=True)
    found = [
        Penalty(lam * cells, rho, t if t >= LEAST_T else 0.0) for (lam, rho, t), cells in of_members
    ]
    return [found[-1], *found[:-1]]


def solved_in_parts(
    shadow: Shadow, targets: np.ndarray, penalty: Penalty, prior: Tensor | None
) -> Solution:
    """Of all targets, some at a time: their multiplicities are dense then.

    prior [N, R]: see Model.
    """
    parts = []
    for first in range(0, len(targets), TARGETS):
        some = targets[first : first + TARGETS]
        weight = None
        if prior is not None:
            weight = F.pad(prior[torch.as_tensor(some)].to(shadow.read) ** -2, (0, 1), value=1.0).mT
        parts.append(solve(shadow.moments(some), penalty, weight=weight))
    if parts[0].deviations is None:
        return Solution(torch.cat([each.shared for each in parts], -1))
    return Solution(
        *(
            torch.cat([getattr(each, name) for each in parts], -1)
            for name in ("shared", "deviations")
        )
    )
