"""Knock-off regulators, and the regulation layer fitted with them beside the real ones.

A knock-off has its regulator's own multiplicities, in other cells. The layer reads regulators and knock-offs side by
side and is penalised as before; targets stay as they are, and no knock-off is a target. Which cells decides what is
controlled:

shuffled    one permutation of the cells per stratum (cell type, depth) for all regulators. Only the stratum ties a
            knock-off to a target: small q-values mean *association*. Whatever correlates with a true regulator passes.
knockoffs   second-order knockoffs within cell types: they correlate with the other regulators (and with each other)
            as their own regulators do. A pair stands out only where its regulator says something about the target
            that the cell type, the depth and the other regulators together do not.

Neither controls false *causes*: a regulator that was not measured, or measured with noise, leaves what it explains to
those that correlate with it (Kernfeld et al. 2024). benchmarks/false_discovery.py measures how much that is.
Sources: knockoffs, Candes et al. 2018; their shares, Spector and Janson 2022.

Letters: P members, C cells, N genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grn.config.schema import RegulationConfig
from grn.model.regulation_layer import Regulation
from grn.regulation.members import CellTable, set_units, train_members
from grn.regulation.penalty import choose_penalty
from grn.regulation.training_cells import FitCells

STRATA = 20  # of depth, as long as each holds
LEAST = 20  # cells
ROUNDS, SETTLED = 100, 1e-4  # of the search for the knockoffs' shares
ENOUGH = 5  # cells per regulator: from there on their correlations are taken as they are
RIDGE = 1e-3  # on correlations, so that regulators which never vary do no harm
DEPTH_POWERS = 3  # of the basal multiplicity that a regulator's mean may follow


@dataclass(frozen=True)
class KnockoffFit:
    """A fitted layer whose columns are all R regulators and then their R knock-offs.

    inputs [C, 2R]: multiplicities of both in the fitted cells.   depth [C]: multiplicity of the basal gene.
    """

    layer: Regulation
    inputs: Tensor
    depth: Tensor


def fit_with_knockoffs(
    config: RegulationConfig,
    cells: FitCells,
    *,
    penalty: float | None = None,
    labels: np.ndarray | None = None,
    seed: int,
    device: torch.device | str = "cpu",
    kind: str = "knockoffs",
) -> KnockoffFit:
    """A regulation layer fitted with every regulator and its knock-off side by side.

    Arguments as for `fit_regulation`; penalty: the one that it chose (None: choose anew).   labels [C]: cell type
    indices, -1 unknown; without them the cell types' common ups and downs pass for regulation.
    kind: knockoffs | shuffled. Raises KeyError for others.
    """
    if penalty is None:
        penalty = choose_penalty(config, cells, seed=seed, device=device)
    kinds = np.full(len(cells.rows), -1) if labels is None else labels[cells.rows]
    cells = cells.alone()  # knock-offs are made for the fitted cells only
    regulators = cells.regulators
    real = cells.multiplicity[:, regulators].toarray()
    # All members see the same knock-offs: averaged over different ones, these would be weaker than false edges are.
    false = KINDS[kind](real, cells.basal, kinds, np.random.default_rng(seed))

    torch.manual_seed(seed)
    # Each regulator is listed twice: neither it nor its knock-off speaks to itself. Twice the keys, twice the width.
    twice = torch.as_tensor(np.concatenate([regulators, regulators]))
    layer = Regulation(config.members, len(cells.mean), twice, config.heads, 2 * config.width)
    set_units(layer, cells)
    layer.to(device)
    inputs = torch.as_tensor(np.concatenate([real, false], axis=1), device=device)
    depth = torch.as_tensor(cells.basal, device=device)
    table = CellTable(layer, cells)
    table.inputs = layer.inputs(inputs, depth)
    train_members(layer, table, cells, [penalty] * config.members, range(config.members), config.steps, config, seed)
    layer.requires_grad_(False)

    return KnockoffFit(layer, inputs, depth)


def shuffled(values: np.ndarray, basal: np.ndarray, kinds: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """values [C, R] with whole rows permuted within each stratum. basal [C], kinds [C]: cell types, -1 unknown."""
    found = values.copy()
    for stratum in strata(basal, kinds):
        found[stratum] = values[generator.permutation(stratum)]
    return found


def knockoffs(values: np.ndarray, basal: np.ndarray, kinds: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """values [C, R] with each column permuted by itself within each cell type, into the ranks of a Gaussian knockoff.

    The means that cell type and depth give stay; around them, the knock-offs' correlations among each other and with
    the values of other regulators are the regulators' own. Arguments as for `shuffled`.
    """
    from sklearn.covariance import ledoit_wolf

    types = np.unique(kinds)
    design = np.column_stack([kinds[:, None] == types, *(basal**power for power in range(1, DEPTH_POWERS + 1))])
    design = design.astype(np.float64)
    expected = design @ np.linalg.lstsq(design, values.astype(np.float64), rcond=None)[0]
    rest = values - expected
    spread = rest.std(0)
    spread[spread < 1e-6] = 1
    rest /= spread
    # Shrunken correlations would make knock-offs too free of the other regulators, and so too weak a null.
    enough = len(rest) >= ENOUGH * rest.shape[1]
    correlation = rest.T @ rest / len(rest) if enough else ledoit_wolf(rest, assume_centered=True)[0]
    correlation += RIDGE * np.eye(len(correlation))
    size = np.sqrt(correlation.diagonal())
    correlation /= size[:, None] * size
    share = independent_shares(correlation)
    kept = np.linalg.solve(correlation, np.diag(share))  # S^-1 diag(s)
    noise = 2 * np.diag(share) - share[:, None] * kept
    root = np.linalg.cholesky(noise + 1e-8 * np.eye(len(noise)))
    drawn = expected + spread * (rest - rest @ kept + generator.standard_normal(rest.shape) @ root.T)
    return same_values(drawn, values, kinds)


def same_values(drawn: np.ndarray, values: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """values [C, R], each column put into the order of `drawn` within each cell type [C]."""
    found = np.empty_like(values)
    for kind in np.unique(kinds):
        cells = np.flatnonzero(kinds == kind)
        ranks = drawn[cells].argsort(0, kind="stable").argsort(0)
        found[cells] = np.take_along_axis(np.sort(values[cells], axis=0), ranks, 0)
    return found


def independent_shares(correlation: np.ndarray) -> np.ndarray:
    """s [R], 0 to 1: the part of each regulator that its knockoff has of its own, correlation [R, R] positive definite.

    Least tr((2 S - diag s)^-1) + sum 1 / s: as little of a regulator as can be is rebuilt from the others and the
    knockoffs. The gradient is 0 where s_j^-2 is the j-th diagonal element of (2 S - diag s)^-2, which is iterated, with
    shorter steps where one would lead uphill or out of the cone.
    """
    share = np.full(len(correlation), min(1.0, float(np.linalg.eigvalsh(correlation)[0])))

    def inverse(share: np.ndarray) -> tuple[np.ndarray, float]:
        left = 2 * correlation - np.diag(share)
        try:
            np.linalg.cholesky(left)
        except np.linalg.LinAlgError:
            return left, np.inf
        found = np.linalg.inv(left)
        return found, float(np.trace(found) + (1 / share).sum())

    found, loss = inverse(share)
    for _ in range(ROUNDS):
        wanted = 1 / np.linalg.norm(found, axis=0)
        for step in (1.0, 0.5, 0.25, 0.1, 0.01):
            trial = np.minimum(share ** (1 - step) * wanted**step, 1.0)
            found_there, loss_there = inverse(trial)
            if loss_there < loss:
                break
        else:
            break
        settled = loss - loss_there < SETTLED * loss
        share, found, loss = trial, found_there, loss_there
        if settled:
            break
    return share


def strata(basal: np.ndarray, kinds: np.ndarray) -> list[np.ndarray]:
    """Cells of the same type and of nearly the same depth: positions, each cell in one stratum."""
    found: list[np.ndarray] = []
    for kind in np.unique(kinds):
        cells = np.flatnonzero(kinds == kind)
        ordered = cells[np.argsort(basal[cells], kind="stable")]
        found += np.array_split(ordered, max(1, min(STRATA, len(cells) // LEAST)))
    return found


Knockoffs = Callable[[np.ndarray, np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
KINDS: dict[str, Knockoffs] = {"knockoffs": knockoffs, "shuffled": shuffled}
