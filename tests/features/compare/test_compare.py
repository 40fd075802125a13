"""`grn.compare`: what the command says and finds, from Python, and for cells in memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import grn
from grn.cells.simulated.cells import simulate
from grn.config.schema import SimulatedConfig
from grn.runtime.errors import ConfigError, DataError

OPTIONS = {"permutations": 10, "quiet": True}


RAISED = [f"g{number}" for number in range(20, 30)]


@pytest.fixture(scope="module")
def cells():
    """Half of the cells are treated, which raises ten genes."""
    adata = simulate(SimulatedConfig(cells=120, genes=40, regulators=4, cell_types=2))
    adata.var_names = [f"g{number}" for number in range(40)]
    adata.obs["treated"] = pd.Categorical(np.tile(["no", "no", "yes", "yes"], 30))
    adata.obs["batch"] = np.arange(120) % 3
    values = adata.X.toarray()
    values[np.ix_(adata.obs["treated"] == "yes", adata.var_names.isin(RAISED))] += 3
    adata.X = values
    return adata


@pytest.fixture(scope="module")
def run_in_memory(cells, tmp_path_factory):
    """Trained with known regulons: A raises these genes and B lowers them."""
    home = tmp_path_factory.mktemp("runs")
    known = pd.DataFrame(
        {
            "source": ["A"] * 10 + ["B"] * 10,
            "target": RAISED * 2,
            "weight": [1.0] * 10 + [-1.0] * 10,
        }
    )
    known.to_csv(home / "regulons.csv", index=False)
    few = {"model.members": 1, "network.regulons": str(home / "regulons.csv")}
    return grn.train(
        cells, label="cell_type", max_steps=2, set=few, output=home / "memory", quiet=True
    )


def test_a_run_and_its_folder_give_the_same_tables(tiny_run, capsys):
    activity, edges = grn.compare(grn.load(tiny_run), "cell_type", **OPTIONS)
    pd.testing.assert_frame_equal(edges, grn.compare(tiny_run, by="cell_type", **OPTIONS).edges)
    assert activity is None and capsys.readouterr().out == ""
    assert any("edges alone are compared" in line for line in edges.attrs["notes"])
    assert any("40 and 40 cells" in line for line in edges.attrs["notes"])
    loud = grn.compare(tiny_run, "cell_type", permutations=10)
    assert capsys.readouterr().out.splitlines() == loud.edges.attrs["notes"]


def test_cells_in_memory_are_given_again(run_in_memory, cells):
    with pytest.raises(DataError):
        grn.compare(run_in_memory, "treated", **OPTIONS)
    before = cells.copy()
    edges = grn.compare(run_in_memory, "treated", data=cells, **OPTIONS).edges
    assert set(edges["cell_type"]) == {"all", "type 1", "type 2"} and {
        "weight_no",
        "weight_yes",
    } <= set(edges)
    pd.testing.assert_frame_equal(before.obs, cells.obs)
    one = grn.compare(run_in_memory, "treated", data=cells, cell_type="type 2", **OPTIONS).edges
    assert set(one["cell_type"]) == {"type 2"}


def test_activity_is_that_of_known_regulons_between_the_conditions(run_in_memory, cells):
    activity = grn.compare(run_in_memory, "treated", data=cells, **OPTIONS).activity
    found = activity.set_index(["cell_type", "regulator"])
    assert set(found.index) == {(each, name) for each in ("type 1", "type 2") for name in "AB"}
    assert (found["q_value"] < 1e-3).all() and (found["targets"] == 10).all()
    np.testing.assert_allclose(
        found["effect"], found["activity_yes"] - found["activity_no"], atol=1e-5
    )
    assert (np.sign(found["effect"].unstack()).to_numpy() == [1, -1]).all()


def test_mistakes_name_the_argument(run_in_memory, cells):
    for arguments in ({"by": "treat"}, {"by": "batch"}, {"by": "batch", "group": "batch"}):
        with pytest.raises((DataError, ConfigError), match=f"{[*arguments][-1]}=|conditions="):
            grn.compare(run_in_memory, data=cells, **arguments, **OPTIONS)
    with pytest.raises(DataError, match="type 7"):
        grn.compare(run_in_memory, "treated", data=cells, cell_type="type 7", **OPTIONS)
    two = grn.compare(run_in_memory, "batch", data=cells, conditions=("0", "2"), **OPTIONS).edges
    assert {"weight_0", "weight_2"} <= set(two)
