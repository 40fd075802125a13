"""The table of active regulators: places, hits and misses are counted as they are said to be."""

from __future__ import annotations

import activity as benchmark
import anndata
import numpy as np
import pandas as pd
import pytest

pytest.importorskip("decoupler")


def test_places_are_counted_from_one_and_hits_are_the_first_five():
    t = pd.Series(np.arange(10, 0, -1.0), [f"R{number}" for number in range(10)])
    found = benchmark.row("set", "grn", "B", 30, t, ["R0", "R4", "R5", "absent"])
    assert (found["hits"], found["misses"]) == (2, 1) and found["known"] == "R0:1 R4:5 R5:6"
    assert found["first"] == "R0 R1 R2 R3 R4" and found["expected_by_chance"] == 1.5


def test_what_rises_most_comes_first_and_what_never_varies_counts_as_unchanged():
    activity = pd.DataFrame({"up": [3.0, 3.1, 1.0, 1.1], "down": [0.0, 0.1, 2.0, 2.1], "same": [1.0] * 4})
    first = np.array([True, True, False, False])
    found = benchmark.differences(activity, first, ~first)
    assert list(found.index) == ["up", "same", "down"] and found["same"] == 0


def test_a_planted_regulator_is_found_active_in_its_cells(monkeypatch):
    """STAT1 raises twelve genes, and does so after treatment; each method finds it."""
    generator = np.random.default_rng(0)
    regulators = ["STAT1", "STAT2", "IRF7", "IRF9", "X1", "X2"]
    genes = [*regulators, *(f"g{number}" for number in range(30))]
    levels = generator.gamma(4.0, 1.0, (160, len(regulators)))
    treated = np.arange(160) % 2 == 0
    levels[treated, 0] += 6
    rates = np.hstack([levels, np.full((160, 30), 5.0)])
    rates[:, 6:18] = 1 + 2 * levels[:, :1]
    cells = anndata.AnnData(generator.poisson(rates).astype(np.float32), var=pd.DataFrame(index=genes))
    cells.obs["condition"] = np.where(treated, "stim", "ctrl")
    cells.obs["type"] = np.where(np.arange(160) < 80, "a", "b")
    rows = pd.DataFrame(benchmark.of_interferon(cells, regulators, "type", 0))
    assert set(rows["method"]) == {"grn", "pearson", "ridge"} and set(rows["cell_type"]) == {"a", "b"}
    assert rows["first"].str.startswith("STAT1 ").all()
