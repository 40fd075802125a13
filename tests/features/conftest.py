"""Planted slopes: cells whose targets follow known regulators, with known differences between two
conditions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from grn.cells.cells import Cells
from grn.cells.simulated.cells import simulate


@dataclass(frozen=True)
class Planted:
    """Cells of two conditions with planted differences.

    cells, obs: with condition (a, b), type and, with donors, donor.
    delta [targets, R]: slope in b - in a.
    """

    cells: Cells
    obs: pd.DataFrame
    delta: np.ndarray

    @property
    def condition(self) -> pd.Series:
        return self.obs["condition"]

    def true_effects(self, table: pd.DataFrame) -> np.ndarray:
        """delta of each row of a table, in units of the genes' sds; 0 for regulators as targets."""
        sd = self.cells.multiplicity.toarray().std(0)
        regulators = self.delta.shape[1]
        of = {gene: number for number, gene in enumerate(self.cells.vocabulary)}
        source, target = table["source"].map(of).to_numpy(), table["target"].map(of).to_numpy()
        planted = np.concatenate([np.zeros((regulators, regulators)), self.delta])
        return planted[target, source] * sd[source] / sd[target]


def cells_of(
    values: np.ndarray, regulators: int, types: np.ndarray, basal: np.ndarray | None = None
) -> Cells:
    cells, genes = values.shape
    classes, labels = np.unique(types, return_inverse=True)
    return Cells(
        multiplicity=sparse.csr_matrix(values.astype(np.float32)),
        vocabulary=tuple(f"R{n + 1}" if n < regulators else f"G{n + 1}" for n in range(genes)),
        regulators=np.arange(regulators),
        labels=labels,
        classes=tuple(map(str, classes)) if len(classes) > 1 else (),
        obs_names=np.array([f"cell{n}" for n in range(cells)]),
        basal=np.ones(cells, np.float32) if basal is None else basal.astype(np.float32),
        depth=None,
        measures_depth=np.ones(genes, dtype=bool),
        depth_share=np.zeros(genes),
        target_total=None,
        counts_from="",
    )


def plant(
    seed: int,
    *,
    cells: int = 400,
    regulators: int = 12,
    targets: int = 60,
    changed: int = 0,
    share: float = 0.5,
    types: int = 1,
    levels: float = 3.0,
    scales: bool = False,
    noises: bool = False,
    donors: int = 0,
    donor_slopes: float = 0.0,
    paired: bool = False,
    opposite_types: bool = False,
) -> Planted:
    """Return cells of two conditions with planted differences.

    changed: so many targets have one slope that differs.
    share: of the cells that are in condition b.
    levels: sd of the shift of each gene in condition b.
    scales, noises: in b, half of the regulators (noises of targets) vary three times as much and
        the others a third as much.
    donors: in each condition (paired: in both).
    donor_slopes: sd over donors of each slope.
    opposite_types: slopes of the second type have the other sign, and it mostly in b.
    """
    rng = np.random.default_rng(seed)
    in_b = np.arange(cells) >= round(cells * (1 - share))
    cell_type = rng.integers(0, types, cells)
    if opposite_types:
        cell_type = (rng.random(cells) < np.where(in_b, 0.8, 0.2)).astype(int)
    donor = rng.integers(0, max(donors, 1), cells) + (0 if paired else max(donors, 1) * in_b)
    sign = np.where(in_b, 1.0, -1.0)[:, None]
    x = rng.normal(size=(cells, regulators)) + 0.5 * rng.normal(size=(cells, 3)) @ rng.normal(
        size=(3, regulators)
    )
    if scales:
        x = np.where(in_b[:, None], x * rng.choice([3, 1 / 3], regulators), x)
    beta, delta = np.zeros((targets, regulators)), np.zeros((targets, regulators))
    for target in range(targets):
        beta[target, rng.choice(regulators, 3, replace=False)] = rng.choice(
            [-1, 1], 3
        ) * rng.uniform(0.2, 0.6, 3)
    for target in range(changed):
        delta[target, rng.choice(regulators)] = rng.choice([-1, 1]) * rng.uniform(0.5, 0.9)
    noise = rng.normal(size=(cells, targets))
    if noises:
        noise = np.where(in_b[:, None], noise * rng.choice([3, 1 / 3], targets), noise)
    own = donor_slopes * rng.normal(size=(2 * max(donors, 1), targets, regulators))
    flipped = np.where(opposite_types & (cell_type == 1), -1, 1)[:, None]
    y = (
        flipped * (x @ beta.T)
        + (sign / 2 * x) @ delta.T
        + np.einsum("cr,ctr->ct", x, own[donor])
        + noise
    )
    genes = np.concatenate([x, y], 1)
    genes += levels * in_b[:, None] * rng.normal(size=genes.shape[1])
    genes += levels * rng.normal(size=(types + 1, genes.shape[1]))[cell_type]
    obs = pd.DataFrame(
        {"condition": np.where(in_b, "b", "a"), "donor": [f"donor {n}" for n in donor]}
    )
    obs["type"] = [f"type {n}" for n in cell_type]
    names = obs["type"].to_numpy(str) if types > 1 or opposite_types else np.repeat("one", cells)
    return Planted(cells_of(genes, regulators, names), obs, delta)


@pytest.fixture
def make_planted():
    return plant


@pytest.fixture
def adata(run):
    """The cells of the run."""
    return simulate(run.config.data.simulated)
