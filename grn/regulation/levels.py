"""Do the levels of the states follow their regulators? Held-out states tell.

Cells of different states (types, for example) have different levels of their genes. Where these differences come from
regulators, slopes that were fitted to other states predict the levels of a state that the fit has not seen. Where they
come from what the states are made of, the slopes predict nothing, or worse than that.

Letters: C cells, N genes, R regulators, K states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grn.regulation.cell_table import TrainingCells
from grn.regulation.linear import LARGE, Penalties
from grn.regulation.ridge import Ridge

GENES = 256  # whose multiplicities are held as a dense table at a time


def moments_of(cells: TrainingCells, device: torch.device | str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums over the fitted cells of each state, in sds from the genes' means, weighted by memberships.

    Number of cells [K], genes [K, N], products of two regulators [K, R, R] and of regulator and gene [K, R, N].
    """
    fitted = cells.only_fitted()
    kind = torch.float64 if len(cells.regulators) <= LARGE // 4 else torch.float32
    states = torch.as_tensor(fitted.memberships(), dtype=kind, device=device)
    mean, sd = cells.mean.to(device, kind), cells.sd.to(device, kind)
    columns = fitted.multiplicity.tocsc()

    def standardised(genes) -> Tensor:
        return (torch.as_tensor(columns[:, genes].toarray(), dtype=kind, device=device) - mean[genes]) / sd[genes]

    x = standardised(cells.regulators)
    weighted = [x * p[:, None] for p in states.mT]
    total, cross = [], []
    for first in range(0, len(mean), GENES):
        y = standardised(slice(first, first + GENES))
        total.append(states.mT @ y)
        cross.append(torch.stack([each.mT @ y for each in weighted]))
    gram = torch.stack([each.mT @ x for each in weighted])
    return states.sum(0), torch.cat(total, 1), gram, torch.cat(cross, 2)


def level_error(cells: TrainingCells, penalties: Penalties, *, device: torch.device | str = "cpu") -> float:
    """Squared error of the levels of states that were left out, in variances of the levels; 1: of no difference.

    Slopes that are fitted to all other states (pooled: their levels have a part in them) predict the difference between
    the state's means and those of the others from the regulators' differences. penalties: of the pooled fit.
    """
    own = torch.as_tensor(cells.regulators, device=device)
    sizes, total, gram, cross = moments_of(cells, device)
    everything = float(sizes.sum())
    error, variance = 0.0, 0.0
    for state, size in enumerate(sizes.tolist()):
        if not 0 < size < everything - 1:
            continue
        # The memberships of a cell sum to 1: what does not count in this state counts in the others.
        kept = torch.arange(len(sizes), device=device) != state
        others = total[kept].sum(0) / (everything - size)
        of_regulators = gram[kept].sum(0) - (everything - size) * torch.outer(others[own], others[own])
        of_genes = cross[kept].sum(0) - (everything - size) * torch.outer(others[own], others)
        slopes = Ridge.of_moments(of_regulators, of_genes, own).coefficients(penalties.penalty.to(gram))  # [R, N]
        difference = total[state] / size - others
        error += size * float((difference - difference[own] @ slopes).square().sum())
        variance += size * float(difference.square().sum())
    return error / variance if variance else 1.0


def state_levels(multiplicity, states):
    """Mean multiplicity of each gene in each state, [K, N]; 0 in a state without cells.

    multiplicity [C, N] and states [C, K]: sparse or dense arrays, or tensors.
    """
    size = states.sum(0)
    return (states / (size + (size == 0))).T @ multiplicity
