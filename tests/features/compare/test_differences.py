"""Edges that differ:
planted ones are found, and nothing else is, whatever differs besides slopes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from scipy.stats import false_discovery_control

from grn.cells.cells import Cells
from grn.features.arguments.conditions import Compared, compared_cells
from grn.features.compare.differences import SlopeFit, compare_edges, pairs_of_type
from grn.runtime.errors import DataError
from grn.runtime.messages import silent

SEEDS = range(4)


@dataclass(frozen=True)
class Planted:
    """Cells of two conditions with planted differences.

    cells, obs: with condition (a, b), type and, with donors, donor.
    delta: slope in b - in a, of each (target, source).
    """

    cells: Cells
    obs: pd.DataFrame
    delta: pd.Series

    @property
    def condition(self) -> pd.Series:
        return self.obs["condition"]

    def true_effects(self, table: pd.DataFrame) -> np.ndarray:
        """delta of each row of a table, in units of the genes' sds; 0 for regulators as targets."""
        sd = pd.Series(self.cells.multiplicity.toarray().std(0), self.cells.vocabulary)
        ratio = sd[table["source"]].to_numpy() / sd[table["target"]].to_numpy()
        pairs = pd.MultiIndex.from_frame(table[["target", "source"]])
        return self.delta.reindex(pairs, fill_value=0).to_numpy() * ratio


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
    varying: bool = False,
    donors: int = 1,
    donor_slopes: float = 0.0,
    paired: bool = False,
    opposite_types: bool = False,
) -> Planted:
    """Return cells of two conditions with planted differences.

    changed: so many targets have one slope that differs.
    share: of the cells that are in condition b.
    levels: sd of the shift of each gene in condition b.
    varying: in b, half of the regulators, and half of the targets' noises, vary three times as much
        and the others a third as much.
    donors: in each condition (paired: in both).
    donor_slopes: sd over donors of each slope.
    opposite_types: slopes of the second type have the other sign, and it mostly in b.
    """
    rng = np.random.default_rng(seed)
    in_b = np.arange(cells) >= round(cells * (1 - share))
    cell_type = rng.integers(0, types, cells)
    if opposite_types:
        cell_type = (rng.random(cells) < np.where(in_b, 0.8, 0.2)).astype(int)
    donor = rng.integers(0, donors, cells) + (0 if paired else donors * in_b)

    def varied(values: np.ndarray) -> np.ndarray:
        times = rng.choice([3, 1 / 3], values.shape[1]) if varying else 1
        return np.where(in_b[:, None], values * times, values)

    x = rng.normal(size=(cells, regulators))
    x = varied(x + 0.5 * rng.normal(size=(cells, 3)) @ rng.normal(size=(3, regulators)))
    beta, delta = np.zeros((2, targets, regulators))
    for slopes in beta:
        size = rng.choice([-1, 1], 3) * rng.uniform(0.2, 0.6, 3)
        slopes[rng.choice(regulators, 3, replace=False)] = size
    for slopes in delta[:changed]:
        size = rng.choice([-1, 1]) * rng.uniform(0.5, 0.9)
        slopes[rng.choice(regulators)] = size
    noise = varied(rng.normal(size=(cells, targets)))
    own = donor_slopes * rng.normal(size=(2 * donors, targets, regulators))
    turned = np.where(opposite_types & (cell_type == 1), -1, 1)[:, None]
    y = turned * (x @ beta.T) + (np.where(in_b, 0.5, -0.5)[:, None] * x) @ delta.T + noise
    y += np.einsum("cr,ctr->ct", x, own[donor])
    genes = np.concatenate([x, y], 1)
    genes += levels * in_b[:, None] * rng.normal(size=genes.shape[1])
    genes += levels * rng.normal(size=(types + 1, genes.shape[1]))[cell_type]
    obs = pd.DataFrame({"condition": np.where(in_b, "b", "a"), "donor": donor, "type": cell_type})
    obs = obs.astype({"donor": str, "type": str})
    classes = sorted(set(obs["type"]))
    names = [f"R{n}" for n in range(regulators)], [f"G{n}" for n in range(targets)]
    made = Cells(
        multiplicity=sparse.csr_matrix(genes.astype(np.float32)),
        vocabulary=(*names[0], *names[1]),
        regulators=np.arange(regulators),
        labels=cell_type,
        classes=tuple(classes) if len(classes) > 1 else (),
        obs_names=obs.index.astype(str).to_numpy(),
        basal=np.ones(cells, np.float32),
        depth=None,
        measures_depth=np.ones(regulators + targets, dtype=bool),
        depth_share=np.zeros(regulators + targets),
        target_total=None,
        counts_from="",
    )
    return Planted(made, obs, pd.DataFrame(delta, names[1], names[0]).stack())


def network_of(cells: Cells, condition: pd.Series) -> pd.DataFrame:
    """Every pair of a regulator and a gene that is none, by falling correlation within the
    conditions.
    """
    values = pd.DataFrame(cells.multiplicity.toarray(), columns=cells.vocabulary)
    within = values - values.groupby(condition.to_numpy()).transform("mean")
    regulators = len(cells.regulators)
    found = within.corr().fillna(0).iloc[regulators:, :regulators]
    edges = found.rename_axis(index="target", columns="source").stack().rename("weight")
    return edges.reset_index().sort_values("weight", key=abs, ascending=False, ignore_index=True)


def pairs_in(table: pd.DataFrame) -> set[tuple[str, str]]:
    return set(zip(table["source"], table["target"], strict=True))


def compare_cells(
    cells, condition, donor=None, *, conditions=None, edges=None, say=silent, **options
) -> pd.DataFrame:
    chosen = compared_cells(cells, condition, donor, conditions=conditions, say=say)
    edges = network_of(cells, condition) if edges is None else edges
    by_type = pd.concat([edges.assign(cell_type=name) for name in cells.classes or ("all",)])
    return compare_edges(cells, chosen, edges, by_type, say=say, **{"permutations": 40} | options)


def compared(planted, *, donors: bool = False, **options) -> pd.DataFrame:
    return compare_cells(
        planted.cells, planted.condition, planted.obs["donor"] if donors else None, **options
    )


def test_planted_differences_are_found_with_their_signs_and_sizes():
    found, false, covered = 0, 0, []
    for seed in SEEDS:
        planted = plant(seed, changed=30)
        table = compared(planted)
        true = planted.true_effects(table)
        hits, differs = table["q_value"] <= 0.05, true != 0
        assert differs.sum() == 30
        found, false = found + (hits & differs).sum(), false + (hits & ~differs).sum()
        assert (np.sign(table["effect"]) == np.sign(true))[hits & differs].all()
        assert (table["effect"] / true)[differs].mean() == pytest.approx(1, abs=0.1)
        covered.append(((table["low"] <= true) & (true <= table["high"])).mean())
        difference = table["weight_b"] - table["weight_a"]
        np.testing.assert_allclose(difference, table["effect"], atol=1e-5)
    assert found >= 0.95 * 30 * len(SEEDS) and false <= 0.1 * found
    assert 0.92 <= np.mean(covered) <= 0.98


NOTHING_DIFFERS = {
    "levels": {"levels": 10.0},
    "few cells": {"cells": 100},
    "few cells in b": {"share": 0.2},
    "regulators vary more, noise differs": {"varying": True},
    "many regulators": {"cells": 150, "regulators": 60, "varying": True},
    "as many regulators as cells in a condition": {
        "cells": 200,
        "regulators": 100,
        "varying": True,
    },
    "types": {"types": 3},
    "types with other slopes are mixed differently": {"opposite_types": True, "cells": 800},
}


@pytest.mark.parametrize("case", NOTHING_DIFFERS)
def test_nothing_is_found_where_no_slope_differs(case):
    found = pd.concat([compared(plant(seed, **NOTHING_DIFFERS[case])) for seed in SEEDS])
    assert (found["q_value"] <= 0.05).sum() <= 3
    assert 0.03 <= (found["p_value"] <= 0.05).mean() <= 0.065
    assert (found["p_value"] <= 0.001).mean() <= 0.003


def test_a_difference_is_that_of_its_own_regulator():
    """Not that of others which vary together with it, although there are many."""
    planted = plant(0, cells=400, regulators=100, targets=40, changed=20)
    edges = network_of(planted.cells, planted.condition)
    # the planted ones are tested
    edges = edges.iloc[np.argsort(planted.true_effects(edges) == 0, kind="stable")]
    table = compared(planted, edges=edges)
    true, hits = planted.true_effects(table), table["q_value"] <= 0.05
    assert (hits & (true != 0)).sum() >= 14 and (hits & (true == 0)).sum() <= 2


def test_a_slope_that_the_depth_makes_is_not_regulation():
    """The depth sets x and y more in one condition than in the other: their slopes differ until it
    is taken out.
    """
    planted = plant(1, regulators=3)
    depth = np.random.default_rng(1).normal(size=(len(planted.cells), 1)).astype(np.float32)
    shared = np.where(planted.condition == "b", 2, 0)[:, None] * depth
    values = sparse.csr_matrix(planted.cells.multiplicity.toarray() + shared)
    unknown = replace(planted.cells, multiplicity=values)
    known = replace(unknown, basal=depth[:, 0])
    found = [
        (compare_cells(cells, planted.condition)["q_value"] <= 0.05).sum()
        for cells in (known, unknown)
    ]
    assert found[0] <= 1 < 10 < found[1]


@pytest.mark.parametrize("paired", [False, True], ids=["a condition each", "both conditions"])
def test_donors_with_slopes_of_their_own_are_kept_whole(paired):
    """As independent cells, they would give many false edges where each donor has one condition."""
    options = {"donors": 4, "donor_slopes": 0.3, "cells": 600, "paired": paired}
    drawn = [plant(seed, **options) for seed in SEEDS]
    whole, cells = (
        pd.concat([compared(planted, donors=donors) for planted in drawn])
        for donors in (True, False)
    )
    assert (whole["q_value"] <= 0.05).sum() <= 2
    assert 0.03 <= (whole["p_value"] <= 0.05).mean() <= 0.08
    assert paired or (cells["q_value"] <= 0.05).sum() > 50


@pytest.mark.parametrize("paired", [False, True], ids=["a condition each", "both conditions"])
def test_differences_are_found_with_donors(paired):
    planted = plant(3, donors=8, donor_slopes=0.1, cells=800, changed=30, paired=paired)
    table = compared(planted, donors=True, permutations=60)
    true, hits = planted.true_effects(table), table["q_value"] <= 0.05
    assert (hits & (true != 0)).sum() >= 15 and (hits & (true == 0)).sum() <= 0.15 * hits.sum()


def test_too_few_donors_for_small_q_values_are_named():
    lines: list[str] = []
    few = plant(0, donors=3, changed=30)
    table = compared(few, donors=True, permutations=200, say=lines.append)
    assert "With 6 donors, no q-value is below 0.1" in lines[0]
    assert table["q_value"].min() == pytest.approx(0.1, abs=0.05)
    one = compared(plant(0, donors=1), donors=True)
    assert one["q_value"].min() > 0.99, "in one way only"


def test_types_are_compared_together_and_each_alone():
    planted, lines = plant(2, types=2, changed=10, cells=600), []
    rare = planted.obs["type"].mask(np.arange(600) < 30, "rare")
    classes, labels = np.unique(rare, return_inverse=True)
    cells = replace(planted.cells, labels=labels, classes=tuple(classes))
    table = compare_cells(cells, planted.condition, permutations=10, say=lines.append)
    assert set(table["cell_type"]) == {"all", "0", "1"}
    assert any("'rare' (30 and 0 cells): left out" in line for line in lines)
    of_types = table[table["cell_type"] != "all"]
    np.testing.assert_allclose(of_types["q_value"], false_discovery_control(of_types["p_value"]))
    few = pd.Series(np.where(np.arange(600) < 15, "a", "b"), name="by")
    with pytest.raises(DataError, match="enough cells"):
        compare_cells(cells, few)


def test_certain_edges_are_tested_or_the_strongest_where_they_are_few():
    planted, lines = plant(6, changed=30), []
    edges = network_of(planted.cells, planted.condition)
    edges["q_value"] = np.where(np.arange(len(edges)) % 5 == 0, 0.01, 0.9)  # 144 of 720
    table = compared(planted, edges=edges, say=lines.append)
    certain = edges[edges["q_value"] <= 0.05]
    assert pairs_in(table) == pairs_in(certain) and "of 144 certain edges" in lines[-1]
    assert len(pairs_of_type(edges, certain.head(99))[0]) == 720, "few: all"
    many = pd.concat([edges] * 5, ignore_index=True)
    strongest = pairs_of_type(many, edges.head(0))[0]
    pd.testing.assert_frame_equal(strongest, many[["source", "target"]].head(2000))


def test_a_type_has_the_certain_edges_of_its_states_in_both_conditions():
    """Of a run whose states are types in conditions (data.state_key); a pair that is certain in
    both counts once.
    """
    planted = plant(6, types=2, cells=600)
    edges = network_of(planted.cells, planted.condition).assign(q_value=0.01)
    name = planted.cells.classes[0]
    halves = [
        edges[part].assign(cell_type=f"{name}, {condition}")
        for part, condition in ((slice(150), "a"), (slice(100, 200), "b"))
    ]
    chosen = compared_cells(planted.cells, planted.condition, None, conditions=None, say=silent)
    of_types = chosen, edges, pd.concat(halves)
    table = compare_edges(planted.cells, *of_types, permutations=20, say=silent)
    assert pairs_in(table[table["cell_type"] == name]) == pairs_in(edges.head(200))
    assert len(table[table["cell_type"] == name]) == 200


def test_types_themselves_are_compared():
    """As conditions, they are not kept apart as types besides."""
    planted = plant(4, changed=10)
    labels = (planted.condition == "b").to_numpy().astype(int)
    table = compare_cells(
        replace(planted.cells, labels=labels, classes=("a", "b")), planted.condition
    )
    assert set(table["cell_type"]) == {"all"}
    assert (table["q_value"][planted.true_effects(table) != 0] <= 0.05).sum() >= 9


def test_swapping_the_conditions_changes_signs_alone():
    planted = plant(5, changed=10)
    there, back = (
        compared(planted, conditions=names).set_index(["source", "target"]).sort_index()
        for names in ("ab", "ba")
    )
    for name in ("effect", "level_target"):
        np.testing.assert_allclose(there[name], -back[name], atol=1e-5)
    np.testing.assert_allclose(there["weight_a"], back["weight_a"], atol=1e-5)


def test_levels_are_differences_of_means():
    planted = plant(5)
    table = compared(planted)
    values = pd.DataFrame(planted.cells.multiplicity.toarray(), columns=planted.cells.vocabulary)
    a, b = (values[planted.condition == name].mean() for name in "ab")
    for end in ("source", "target"):
        np.testing.assert_allclose(table[f"level_{end}"], (b - a)[table[end]], atol=1e-4)


def test_a_regulator_that_is_off_in_one_condition_has_no_slope_to_compare():
    planted = plant(0)
    values = planted.cells.multiplicity.toarray()
    values[planted.condition == "a", 2] = 0
    cells = replace(planted.cells, multiplicity=sparse.csr_matrix(values))
    table = compare_cells(cells, planted.condition, permutations=10)
    assert "R2" not in set(table["source"]) and "R1" in set(table["source"])


@pytest.mark.parametrize(
    ("signs", "divisions", "dealings"),
    [
        # 20 choices of three of six, of which two each are mirror images
        ([[-1]] * 3 + [[1]] * 3, 10, 20),
        ([[-1]] + [[1]] * 3, 4, 4),  # no division is a mirror image
        ([[-1, -1, 1, 1, 1, 1]] * 4, 8, 16),  # each donor has both conditions, and swaps them
    ],
)
def test_donors_are_dealt_whole(signs, divisions, dealings):
    sign = np.concatenate(signs).astype(np.int8)
    donors = np.repeat(np.arange(len(signs)), len(signs[0]))
    one = np.zeros(len(sign), int)
    cells = Compared(np.arange(len(sign)), sign, ("a", "b"), one, one, donors)
    generator = np.random.default_rng(0)
    others = np.unique([cells.dealt_anew(generator) for _ in range(300)], axis=0)
    assert (cells.divisions, len(others)) == (divisions, dealings)
    factors = pd.DataFrame((others * sign).T).groupby(donors)
    assert (factors.nunique() == 1).all(None)


@pytest.fixture
def drawn():
    """x [3, 5, 80] and y [3, 80] of three targets, and the sign of each cell: features that vary
    together.
    """
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(3, 6, 80, generator=generator, dtype=torch.float64)
    values += values[:, :1] + 0.5 * torch.randn(80, generator=generator, dtype=torch.float64)
    sign = torch.where(torch.rand(80, generator=generator) < 0.4, -1.0, 1.0).double()
    return values[:, 1:], values[:, 0], sign


def literal(x, y, sign, donor):
    """effect, error and score of one target, by plain least squares."""
    x, y, sign = x.numpy().T, y.numpy(), sign.numpy()
    u = sign[:, None] * x / 2
    explained = np.linalg.lstsq(x, np.column_stack([u, y]), rcond=None)[0]
    rest, left = y - x @ explained[:, -1], u - x @ explained[:, :-1]
    operator = np.linalg.pinv(left)
    delta = operator @ y

    def error(residual):
        part = pd.DataFrame((operator * residual).T).groupby(donor).sum()
        return np.sqrt((part**2).sum()).to_numpy()

    return delta, error(rest - left @ delta), delta / error(rest)


def fit_of(x, y, donor=None) -> SlopeFit:
    ones = np.ones(x.shape[-1], int)
    return SlopeFit(x, y, Compared(ones, ones, ("a", "b"), ones, ones, donor))


@pytest.mark.parametrize("donors", [False, True])
def test_differences_are_those_of_least_squares(drawn, donors):
    x, y, sign = drawn
    donor = np.arange(80) % 7 if donors else np.arange(80)
    fit = fit_of(x, y, donor if donors else None)
    effect, error, first, second = fit.differences(sign)
    torch.testing.assert_close(second - first, effect)
    for target in range(3):
        expected = literal(x[target], y[target], sign, donor)
        found = effect[target], error[target] / fit.correction, fit.scores(sign)[target]
        np.testing.assert_allclose(np.stack(found), np.stack(expected), rtol=1e-3)
