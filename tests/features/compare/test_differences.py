"""Edges that differ:
planted ones are found, and nothing else is, whatever differs besides slopes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import false_discovery_control

from grn.cells.cells import Cells
from grn.features.arguments.conditions import Compared, compared_cells
from grn.features.compare.differences import SlopeFit, compare_edges, pairs_of_type
from grn.runtime.errors import DataError
from grn.runtime.messages import silent

SEEDS = range(4)


def network_of(cells: Cells, condition: pd.Series) -> pd.DataFrame:
    """Every pair of a regulator and a gene that is none, by falling correlation within the
    conditions.
    """
    values, regulators = pd.DataFrame(cells.multiplicity.toarray()), len(cells.regulators)
    correlation = np.corrcoef((values - values.groupby(condition.to_numpy()).transform("mean")).T)
    correlation = np.nan_to_num(correlation[regulators:, :regulators])
    target, source = np.unravel_index(
        np.argsort(-np.abs(correlation), axis=None), correlation.shape
    )
    names, weight = np.array(cells.vocabulary), correlation[target, source]
    return pd.DataFrame(
        {"source": names[source], "target": names[target + regulators], "weight": weight}
    )


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


def test_planted_differences_are_found_with_their_signs_and_sizes(make_planted):
    found, false, covered, pairs = 0, 0, [], 0
    for seed in SEEDS:
        planted = make_planted(seed, changed=30)
        table = compared(planted)
        true = planted.true_effects(table)
        hits = table["q_value"] <= 0.05
        found, pairs = found + int((hits & (true != 0)).sum()), pairs + int((true != 0).sum())
        false += int((hits & (true == 0)).sum())
        assert (np.sign(table["effect"]) == np.sign(true))[hits & (true != 0)].all()
        changed = table[true != 0]
        np.testing.assert_allclose((changed["effect"] / true[true != 0]).mean(), 1, atol=0.1)
        covered.append(((table["low"] <= true) & (true <= table["high"])).mean())
        difference = table["weight_b"] - table["weight_a"]
        np.testing.assert_allclose(difference, table["effect"], atol=1e-5)
    assert pairs == 30 * len(SEEDS) and found >= 0.95 * pairs
    assert false <= 0.1 * found
    assert 0.92 <= np.mean(covered) <= 0.98


NOTHING_DIFFERS = {
    "levels": {"levels": 10.0},
    "few cells": {"cells": 100},
    "few cells in b": {"share": 0.2},
    "regulators vary more": {"scales": True},
    "noise differs": {"noises": True},
    "both": {"scales": True, "noises": True},
    "many regulators": {"cells": 150, "regulators": 60, "scales": True, "noises": True},
    "as many regulators as cells in a condition": {
        "cells": 200,
        "regulators": 100,
        "scales": True,
        "noises": True,
    },
    "types": {"types": 3},
    "types with other slopes are mixed differently": {"opposite_types": True, "cells": 800},
}


@pytest.mark.parametrize("case", NOTHING_DIFFERS)
def test_nothing_is_found_where_no_slope_differs(make_planted, case):
    tables = [compared(make_planted(seed, **NOTHING_DIFFERS[case])) for seed in SEEDS]
    p = pd.concat(tables)["p_value"]
    assert sum(int((table["q_value"] <= 0.05).sum()) for table in tables) <= 3
    assert 0.03 <= (p <= 0.05).mean() <= 0.065
    assert (p <= 0.001).mean() <= 0.003


def test_a_difference_is_that_of_its_own_regulator(make_planted):
    """Not that of others which vary together with it, although there are many."""
    planted = make_planted(0, cells=400, regulators=100, targets=40, changed=20)
    edges = network_of(planted.cells, planted.condition)
    # the planted ones are tested
    edges = edges.iloc[np.argsort(planted.true_effects(edges) == 0, kind="stable")]
    table = compare_cells(planted.cells, planted.condition, edges=edges)
    true, hits = planted.true_effects(table), table["q_value"] <= 0.05
    assert (hits & (true != 0)).sum() >= 14 and (hits & (true == 0)).sum() <= 2


def test_slopes_are_shared_within_types_alone(make_planted):
    """Otherwise types with other slopes, mixed differently, would differ between the conditions."""
    planted = make_planted(0, opposite_types=True, cells=800)

    def spread(cells: Cells) -> float:
        """Root mean square of the effects over all types, in standard errors."""
        table = compare_cells(cells, planted.condition, permutations=1)
        table = table[table["cell_type"] == "all"]
        return float(
            (1.96 * 2 * table["effect"] / (table["high"] - table["low"])).pow(2).mean() ** 0.5
        )

    assert 0.9 < spread(planted.cells) < 1.2
    unlabelled = replace(
        planted.cells, labels=np.zeros_like(planted.cells.labels), classes=("one",)
    )
    assert spread(replace(unlabelled, classes=())) > 2


def test_a_slope_that_the_depth_makes_is_not_regulation(make_planted):
    """The depth sets x and y more in one condition than in the other: their slopes differ until it
    is taken out.
    """
    planted = make_planted(1, regulators=3)
    depth = np.random.default_rng(1).normal(size=len(planted.cells))
    shared = np.where(planted.condition == "b", 2, 0)[:, None] * depth[:, None]
    values = planted.cells.multiplicity.toarray() + shared
    change = {"multiplicity": type(planted.cells.multiplicity)(values.astype(np.float32))}
    known = replace(planted.cells, **change, basal=depth.astype(np.float32))
    unknown = replace(planted.cells, **change)
    found = [
        int((compare_cells(cells, planted.condition, permutations=40)["q_value"] <= 0.05).sum())
        for cells in (known, unknown)
    ]
    assert found[0] <= 1 < 10 < found[1]


@pytest.mark.parametrize("paired", [False, True], ids=["a condition each", "both conditions"])
def test_donors_with_slopes_of_their_own_are_kept_whole(make_planted, paired):
    """As independent cells, they would give many false edges where each donor has one condition."""
    drawn = [
        make_planted(seed, donors=4, donor_slopes=0.3, cells=600, paired=paired) for seed in SEEDS
    ]
    whole = pd.concat([compared(planted, donors=True) for planted in drawn])
    assert (whole["q_value"] <= 0.05).sum() <= 2
    assert 0.03 <= (whole["p_value"] <= 0.05).mean() <= 0.08
    if not paired:
        cells = pd.concat([compared(planted) for planted in drawn])
        assert (cells["p_value"] <= 0.05).mean() > 0.15 and (cells["q_value"] <= 0.05).sum() > 50


@pytest.mark.parametrize("paired", [False, True], ids=["a condition each", "both conditions"])
def test_differences_are_found_with_donors(make_planted, paired):
    planted = make_planted(3, donors=8, donor_slopes=0.1, cells=800, changed=30, paired=paired)
    table = compared(planted, donors=True, permutations=60)
    true = planted.true_effects(table)
    hits = table["q_value"] <= 0.05
    assert (hits & (true != 0)).sum() >= 15
    assert (hits & (true == 0)).sum() <= 0.15 * hits.sum()


def test_too_few_donors_for_small_q_values_are_named(make_planted):
    lines: list[str] = []
    table = compared(
        make_planted(0, donors=3, changed=30), donors=True, permutations=200, say=lines.append
    )
    assert "With 6 donors, no q-value is below 0.1" in lines[0]
    assert table["q_value"].min() == pytest.approx(0.1, abs=0.05)
    assert compared(make_planted(0, donors=1), donors=True)["q_value"].min() > 0.99, (
        "in one way only"
    )


def test_types_are_compared_together_and_each_alone(make_planted):
    planted, lines = make_planted(2, types=2, changed=10, cells=600), []
    rare = planted.obs["type"].to_numpy(str).copy()
    rare[:30] = "rare"
    classes, labels = np.unique(rare, return_inverse=True)
    cells = replace(planted.cells, labels=labels, classes=tuple(map(str, classes)))
    table = compare_cells(cells, planted.condition, permutations=10, say=lines.append)
    assert set(table["cell_type"]) == {"all", "type 0", "type 1"}
    assert any("'rare' (30 and 0 cells): left out" in line for line in lines)
    assert table["q_value"].is_monotonic_increasing
    of_types = table[table["cell_type"] != "all"]
    np.testing.assert_allclose(of_types["q_value"], false_discovery_control(of_types["p_value"]))
    chosen = compared_cells(cells, planted.condition, None, conditions=None, say=silent).of_type(
        "type 1"
    )
    edges = network_of(cells, planted.condition)
    alone = compare_edges(
        cells, chosen, edges, edges.assign(cell_type="type 1"), permutations=10, say=silent
    )
    assert set(alone["cell_type"]) == {"type 1"}
    again = table[table["cell_type"] == "type 1"].set_index(["source", "target"])["p_value"]
    pd.testing.assert_series_equal(
        alone.set_index(["source", "target"])["p_value"].sort_index(), again.sort_index()
    )
    with pytest.raises(DataError, match="enough cells"):
        compare_cells(cells, pd.Series(np.where(np.arange(600) < 15, "a", "b"), name="by"))


def test_certain_edges_are_tested_or_the_strongest_where_they_are_few(make_planted):
    planted, lines = make_planted(6, changed=30), []
    edges = network_of(planted.cells, planted.condition)
    edges["q_value"] = np.where(np.arange(len(edges)) % 5 == 0, 0.01, 0.9)  # 144 of 720
    table = compare_cells(planted.cells, planted.condition, edges=edges, say=lines.append)
    certain = edges[edges["q_value"] <= 0.05]
    assert {*zip(table.source, table.target, strict=True)} == {
        *zip(certain.source, certain.target, strict=True)
    }
    assert "of 144 certain edges" in lines[-1]
    few = pairs_of_type(edges, edges[edges["q_value"] <= 0.05].head(99))
    assert few[1] == "strong" and len(few[0]) == 720
    long = pd.concat([edges] * 5, ignore_index=True)
    pd.testing.assert_frame_equal(
        pairs_of_type(long, edges.head(0))[0], long[["source", "target"]].head(2000)
    )


def test_a_type_has_the_certain_edges_of_its_states_in_both_conditions(make_planted):
    """Of a run whose states are types in conditions (data.state_key); a pair that is certain in
    both counts once.
    """
    planted, lines = make_planted(6, types=2, cells=600), []
    edges = network_of(planted.cells, planted.condition).assign(q_value=0.01)
    name, (first, second) = planted.cells.classes[0], sorted(planted.condition.unique())
    halves = (
        edges.head(150).assign(cell_type=f"{name}, {first}"),
        edges[100:200].assign(cell_type=f"{name}, {second}"),
    )
    chosen = compared_cells(planted.cells, planted.condition, None, conditions=None, say=silent)
    table = compare_edges(
        planted.cells, chosen, edges, pd.concat(halves), permutations=20, say=lines.append
    )
    of_type = table[table["cell_type"] == name]
    assert {*zip(of_type.source, of_type.target, strict=True)} == {
        *zip(edges.source.head(200), edges.target.head(200), strict=True)
    }
    assert any(f"{name!r}" in line and "of 200 certain edges" in line for line in lines)


def test_types_themselves_are_compared(make_planted):
    """As conditions, they are not kept apart as types besides."""
    planted, lines = make_planted(4, changed=10), []
    cells = replace(
        planted.cells, labels=(planted.condition == "b").to_numpy().astype(int), classes=("a", "b")
    )
    table = compare_cells(cells, planted.condition, permutations=40, say=lines.append)
    assert "No cell type has cells in both conditions" in lines[0] and set(table["cell_type"]) == {
        "all"
    }
    assert (table["q_value"][planted.true_effects(table) != 0] <= 0.05).sum() >= 9


def test_swapping_the_conditions_changes_signs_alone(make_planted):
    planted = make_planted(5, changed=10)
    there = compared(planted, conditions=("a", "b")).set_index(["source", "target"]).sort_index()
    back = compared(planted, conditions=("b", "a")).set_index(["source", "target"]).sort_index()
    np.testing.assert_allclose(there["effect"], -back["effect"], atol=1e-5)
    np.testing.assert_allclose(there["weight_a"], back["weight_a"], atol=1e-5)
    np.testing.assert_allclose(there["level_target"], -back["level_target"], atol=1e-5)
    change = planted.cells.multiplicity.toarray()
    in_b = (planted.condition == "b").to_numpy()
    expected = change[in_b].mean(0) - change[~in_b].mean(0)
    of = {gene: number for number, gene in enumerate(planted.cells.vocabulary)}
    targets = there.index.get_level_values("target").map(of)
    np.testing.assert_allclose(there["level_target"], expected[targets], atol=1e-4)


def test_a_regulator_that_is_off_in_one_condition_has_no_slope_to_compare(make_planted):
    planted = make_planted(0)
    values = planted.cells.multiplicity.toarray()
    values[(planted.condition == "a").to_numpy(), 2] = 0
    cells = replace(planted.cells, multiplicity=type(planted.cells.multiplicity)(values))
    table = compare_cells(cells, planted.condition, permutations=10, say=silent)
    assert "R3" not in set(table["source"]) and "R2" in set(table["source"])


def dealt(sign, donors=None, types=None):
    sign = np.array(sign, dtype=np.int8)
    types = np.full(len(sign), "one", object) if types is None else np.array(types)
    strata = np.zeros(len(sign), int)
    cells = Compared(
        np.arange(len(sign)), sign, ("a", "b"), types, strata, None if donors is None else donors
    )
    generator = np.random.default_rng(0)
    return cells, [cells.dealt_anew(generator) for _ in range(200)]


def test_donors_with_one_condition_keep_together():
    donors = np.repeat(np.arange(6), 5)
    cells, others = dealt(np.where(donors < 3, -1, 1), donors)
    assert cells.divisions == 10  # 20 choices of three of six, of which two each are mirror images
    assert len({min(other.tobytes(), (-other).tobytes()) for other in others}) == 10
    assert all(len(set(other[donors == d])) == 1 for other in others for d in range(6))
    assert all((other > 0).sum() == 15 for other in others)
    cells, others = dealt([-1, 1, 1, 1], np.arange(4))
    assert cells.divisions == len({other.tobytes() for other in others}) == 4, (
        "no division is a mirror image"
    )


def test_donors_with_both_conditions_swap_them():
    donors = np.repeat(np.arange(4), 6)
    sign = np.tile([-1, -1, 1, 1, 1, 1], 4)
    cells, others = dealt(sign, donors)
    assert cells.divisions == 8 and len({other.tobytes() for other in others}) == 16
    for other in others:
        swapped = [int((other * sign)[donors == donor].sum()) for donor in range(4)]
        assert set(swapped) <= {-6, 6}


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
        part = operator * residual
        if donor is not None:
            part = np.stack(
                [part[:, donor == number].sum(1) for number in range(int(donor.max()) + 1)], 1
            )
        return np.sqrt((part**2).sum(1))

    return delta, error(rest - left @ delta), delta / error(rest)


def fit_of(x, y, donor=None) -> SlopeFit:
    ones = np.ones(x.shape[-1], int)
    return SlopeFit(x, y, Compared(ones, ones, ("a", "b"), ones, ones, donor))


@pytest.mark.parametrize("donors", [False, True])
def test_differences_are_those_of_least_squares(drawn, donors):
    x, y, sign = drawn
    donor = np.arange(80) % 7 if donors else None
    fit = fit_of(x, y, donor)
    effect, error, first, second = fit.differences(sign)
    torch.testing.assert_close(second - first, effect)
    for target in range(3):
        expected = literal(x[target], y[target], sign, donor)
        found = effect[target], error[target] / fit.correction, fit.scores(sign)[target]
        for ours, plain in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, plain, rtol=1e-3)


def test_a_shared_slope_leaves_no_difference_however_a_regulator_varies(drawn):
    """Without errors the difference is 0, although the regulators vary four times as much where
    sign is +1.
    """
    x, _, sign = drawn
    x = torch.where(sign > 0, 4 * x, x)
    assert fit_of(x, x.sum(1)).differences(sign)[0].abs().max() < 1e-5


def test_a_copy_of_a_regulator_shares_its_difference(drawn):
    x, _, sign = drawn
    x = torch.cat([x[:, :1], x], 1)
    effect = fit_of(x, sign * x[:, 0]).differences(sign)[0]
    np.testing.assert_allclose(effect[:, :2], 1, atol=1e-2)
    np.testing.assert_allclose(effect[:, 2:], 0, atol=1e-2)
