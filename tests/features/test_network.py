"""Networks as tables: of cells, of a run, of its types and of one cell."""

from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest
import torch

import grn
from grn.cells.simulated.cells import simulate
from grn.config.schema import SimulatedConfig
from grn.runtime.errors import ConfigError, DataError

REGULATORS = ["R1", "R2", "R3", "R4"]
FAST = {"model.members": 2, "trainer.max_steps": 20}


@pytest.fixture(scope="module")
def cells():
    return simulate(SimulatedConfig(cells=160, genes=24, regulators=4, cell_types=2))


def network(cells, **options):
    fields = {"label": "cell_type", "regulators": REGULATORS, "set": FAST, "quiet": True}
    return grn.network(cells, **fields | options)


def test_cells_give_edges_without_a_run(cells):
    before = torch.random.get_rng_state()
    edges = network(cells)
    assert len(edges) == 4 * 23 and set(edges["source"]) == set(REGULATORS)
    assert edges["q_value"].is_monotonic_increasing and edges["q_value"].between(0, 1).all()
    assert all(each.abs().is_monotonic_decreasing for _, each in edges.groupby("q_value")["weight"])
    assert edges["confidence"].between(0.5, 1).all()
    assert torch.equal(torch.random.get_rng_state(), before), "the global random state is as it was"
    pd.testing.assert_frame_equal(edges, network(cells))


def test_a_type_of_cells_has_a_network_of_its_own(cells):
    one, other = (network(cells, cell_type=name) for name in ("type 1", "type 2"))
    merged = one.merge(other, on=["source", "target"])
    assert len(merged) == len(one) and not np.allclose(merged["weight_x"], merged["weight_y"])


def test_one_cell_lacks_the_edges_of_regulators_that_it_lacks(cells):
    counts, name = cells.to_df(), cells.obs_names[5]
    counts.loc[name, ["R1", "R2"]] = 3, 0
    edges = network(anndata.AnnData(counts, obs=cells.obs), cell=name)
    assert list(edges) == ["source", "target", "weight"]
    assert "R2" not in set(edges["source"]) and "R1" in set(edges["source"])
    assert (edges["source"] != edges["target"]).all()
    assert edges["weight"].abs().is_monotonic_decreasing


def test_a_run_gives_what_its_files_hold(run):
    pd.testing.assert_frame_equal(grn.network(run), run.edges)
    table = pd.read_parquet(run.folder / "edges_by_type.parquet")
    expected = table[table["cell_type"] == "type 2"].drop(columns="cell_type")
    found = grn.network(str(run.folder), cell_type="type 2")
    pd.testing.assert_frame_equal(found, expected.reset_index(drop=True))


def test_a_cell_of_a_run_has_a_network(run, adata):
    cell = adata[3]
    edges = grn.network(run, cell=cell.obs_names[0])
    assert len(edges) and set(edges["source"]) <= set(cell.var_names[cell.X.toarray()[0] > 0])


@pytest.mark.parametrize(
    ("source", "options", "problem", "field"),
    [
        ("run", {"cell": "a", "cell_type": "b"}, ConfigError, "cell_type"),
        ("run", {"cell": "nobody"}, DataError, "cell"),
        ("run", {"label": "x"}, ConfigError, "data.label_key"),
        ("cells", {"cell_type": "type 1"}, DataError, "cell_type"),
        ("cells", {"label": "cell_type", "cell_type": "typ 1"}, DataError, "cell_type"),
        ("cells", {"data": anndata.AnnData(np.ones((2, 2)))}, ConfigError, "data"),
    ],
)
def test_what_a_run_or_cells_cannot_give_is_refused(source, options, problem, field, request):
    with pytest.raises(problem) as caught:
        grn.network(request.getfixturevalue(source), **options)
    assert caught.value.field == field
