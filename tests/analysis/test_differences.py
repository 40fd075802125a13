"""Edges that differ: planted ones are found, and nothing else is, whatever differs besides slopes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from grn.analysis.compare_conditions import Divisions
from grn.analysis.differences import compare_cells
from grn.errors import DataError
from grn.messages import silent

SEEDS = range(4)


def compared(planted, *, donors: bool = False, **options) -> pd.DataFrame:
    """The table without regulators as targets: when x changes its scale, the slopes among regulators change."""
    options = {"permutations": 40, "say": silent} | options
    donor = planted.obs["donor"] if donors else None
    table = compare_cells(planted.cells, planted.condition, donor, **options)
    return table[table["target"].str.startswith("G")]


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
    "as many regulators as cells in a condition": {"cells": 200, "regulators": 100, "scales": True, "noises": True},
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
    table = compared(planted)
    true, hits = planted.true_effects(table), table["q_value"] <= 0.05
    assert (hits & (true != 0)).sum() >= 14 and (hits & (true == 0)).sum() <= 2


def test_conditions_weigh_the_same_in_each_type(make_planted, monkeypatch):
    """Otherwise types with other slopes, mixed differently, would differ between the conditions."""

    def spread() -> float:
        """Root mean square of the effects over all types, in standard errors."""
        table = compared(make_planted(0, opposite_types=True, cells=800), permutations=1)
        table = table[table["cell_type"] == "all"]
        return float((1.96 * 2 * table["effect"] / (table["high"] - table["low"])).pow(2).mean() ** 0.5)

    assert 0.9 < spread() < 1.2
    monkeypatch.setattr("grn.analysis.compare_slopes.balance", lambda types, sign: sign.double().abs())
    assert spread() > 2


def test_a_slope_that_the_depth_makes_is_not_regulation(make_planted):
    """The depth sets x and y more in one condition than in the other: their slopes differ until it is taken out."""
    planted = make_planted(1, regulators=3)
    depth = np.random.default_rng(1).normal(size=len(planted.cells))
    shared = np.where(planted.condition == "b", 2, 0)[:, None] * depth[:, None]
    values = planted.cells.multiplicity.toarray() + shared
    change = {"multiplicity": type(planted.cells.multiplicity)(values.astype(np.float32))}
    known = replace(planted.cells, **change, basal=depth.astype(np.float32))
    unknown = replace(planted.cells, **change)
    found = [
        int((compare_cells(cells, planted.condition, permutations=40, say=silent)["q_value"] <= 0.05).sum())
        for cells in (known, unknown)
    ]
    assert found[0] <= 1 < 10 < found[1]


@pytest.mark.parametrize("paired", [False, True], ids=["a condition each", "both conditions"])
def test_donors_with_slopes_of_their_own_are_kept_whole(make_planted, paired):
    """As independent cells, they would give many false edges where each donor has one condition."""
    drawn = [make_planted(seed, donors=4, donor_slopes=0.3, cells=600, paired=paired) for seed in SEEDS]
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
    planted = make_planted(0, donors=3, changed=30)
    table = compared(planted, donors=True, say=lines.append)
    assert "donors can be divided into the conditions in 10 ways only, so that no q-value is below 0.1" in lines[0]
    assert table["q_value"].min() == pytest.approx(0.1)
    with pytest.raises(DataError, match="in one way only"):
        compared(make_planted(0, donors=1), donors=True)


def test_types_are_compared_together_and_each_alone(make_planted):
    planted, lines = make_planted(2, types=2, changed=10, cells=600), []
    rare = planted.obs["type"].to_numpy(str).copy()
    rare[:30] = "rare"
    classes, labels = np.unique(rare, return_inverse=True)
    cells = replace(planted.cells, labels=labels, classes=tuple(map(str, classes)))
    table = compare_cells(cells, planted.condition, permutations=10, say=lines.append)
    assert set(table["cell_type"]) == {"all", "type 0", "type 1"}
    assert any("'rare' is left out: it has 30 in 'a' and 0 in 'b' of the 20 cells" in line for line in lines)
    assert table["q_value"].is_monotonic_increasing
    alone = compare_cells(cells, planted.condition, cell_type="type 1", permutations=10, say=silent)
    assert set(alone["cell_type"]) == {"type 1"}
    again = table[table["cell_type"] == "type 1"].set_index(["source", "target"])["q_value"]
    pd.testing.assert_series_equal(alone.set_index(["source", "target"])["q_value"].sort_index(), again.sort_index())
    for name in ("type 7", "rare"):
        with pytest.raises(DataError, match=name):
            compare_cells(cells, planted.condition, cell_type=name, permutations=10, say=silent)


def test_types_themselves_are_compared(make_planted):
    """As conditions, they are not kept apart as types besides."""
    planted, lines = make_planted(4, changed=10), []
    cells = replace(planted.cells, labels=(planted.condition == "b").to_numpy().astype(int), classes=("a", "b"))
    table = compare_cells(cells, planted.condition, permutations=40, say=lines.append)
    assert "No cell type has cells in both conditions" in lines[0] and set(table["cell_type"]) == {"all"}
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
    assert "R3" not in set(table["source"]) and "R3" in set(table["target"]) and "R2" in set(table["source"])


def divisions(sign, donors=None, types=None, most=200):
    sign = np.array(sign, dtype=np.int8)
    types = np.zeros(len(sign), dtype=int) if types is None else np.array(types)
    found = Divisions(sign, types, None if donors is None else np.array(donors))
    return found, list(found.others(most, np.random.default_rng(0)))


def test_cells_are_dealt_out_within_their_types():
    generator = np.random.default_rng(4)
    sign, types = generator.choice([-1, 1], 60), generator.integers(0, 3, 60)
    found, others = divisions(sign, types=types, most=20)
    assert found.number > 1e300 and len(others) == 20
    for other in others:
        assert (other != sign).any()
        assert all(other[types == t].sum() == sign[types == t].sum() for t in range(3))


def test_donors_with_one_condition_keep_together():
    donors = np.repeat(np.arange(6), 5)
    sign = np.where(donors < 3, -1, 1)
    found, others = divisions(sign, donors)
    assert found.number == 10 and len(others) == 9  # 20 choices of three of six, of which two each are mirror images
    assert len({min(other.tobytes(), (-other).tobytes()) for other in [sign.astype(np.int8), *others]}) == 10
    assert all(len(set(other[donors == d])) == 1 for other in others for d in range(6))
    assert all((other > 0).sum() == 15 for other in others)
    found, others = divisions([-1, 1, 1, 1], [0, 1, 2, 3])
    assert found.number == 4 and len(others) == 3, "no division is a mirror image"
    donors = np.repeat(np.arange(20), 2)
    found, others = divisions(np.where(donors < 10, -1, 1), donors, most=30)
    assert found.number == 92378 and len(others) == 30, "of many divisions, random ones"


def test_donors_with_both_conditions_swap_them():
    donors = np.repeat(np.arange(4), 6)
    sign = np.tile([-1, -1, 1, 1, 1, 1], 4)
    found, others = divisions(sign, donors)
    assert found.number == 8 and len(others) == 7
    for other in others:
        assert all((other[donors == d] == sign[donors == d]).all() or (other[donors == d] == -sign[donors == d]).all()
                   for d in range(4))  # fmt: skip


def test_both_kinds_of_donors():
    donors = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    sign = np.array([-1, 1, -1, 1, -1, -1, 1, 1])
    found, others = divisions(sign, donors)
    assert found.number == 4 and len(others) == 3
    assert all(other[4] == other[5] and other[6] == other[7] and other[4] == -other[6] for other in others)
