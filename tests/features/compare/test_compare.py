"""`grn.compare`: activities and edges that differ between two conditions, in each cell type."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import grn
from grn.cells.simulated.cells import simulate
from grn.config.schema import SimulatedConfig
from grn.runtime.errors import ConfigError, DataError

RAISED = [f"g{number}" for number in range(20, 30)]


def compare(run, by, **options):
    return grn.compare(run, by, permutations=10, **options)


@pytest.fixture(scope="module")
def cells():
    """Half of the cells are treated, which raises ten genes."""
    adata = simulate(SimulatedConfig(cells=120, genes=40, regulators=4, cell_types=2))
    adata.var_names = [f"g{number}" for number in range(40)]
    adata.obs["treated"] = np.tile(["no", "no", "yes", "yes"], 30)
    adata.obs["batch"] = np.arange(120) % 3
    values = adata.to_df()
    values.loc[(adata.obs["treated"] == "yes").to_numpy(), RAISED] += 3
    adata.X = values.to_numpy()
    return adata


@pytest.fixture(scope="module")
def treated(cells, tmp_path_factory):
    """A run with known regulons: A raises these genes and B lowers them."""
    regulons = tmp_path_factory.mktemp("runs") / "regulons.csv"
    known = [(name, gene, weight) for name, weight in (("A", 1), ("B", -1)) for gene in RAISED]
    pd.DataFrame(known, columns=["source", "target", "weight"]).to_csv(regulons, index=False)
    few = {"model.members": 1, "network.regulons": str(regulons)}
    output = regulons.with_name("run")
    return grn.train(cells, label="cell_type", max_steps=2, set=few, output=output)


def test_a_run_and_its_folder_give_the_same_tables(tiny_run):
    activity, edges = compare(grn.load(tiny_run), "cell_type")
    pd.testing.assert_frame_equal(edges, compare(tiny_run, "cell_type").edges)
    assert activity is None and any("40 and 40 cells" in line for line in edges.attrs["notes"])


def test_edges_are_those_of_the_types_and_their_slopes_of_the_conditions(treated, cells):
    before = cells.copy()
    edges = compare(treated, "treated", data=cells).edges
    pd.testing.assert_frame_equal(before.obs, cells.obs)
    assert set(edges["cell_type"]) == {"all", "type 1", "type 2"}
    difference = edges["weight_yes"] - edges["weight_no"]
    np.testing.assert_allclose(edges["effect"], difference, atol=1e-5)
    one = compare(treated, "treated", data=cells, cell_type="type 2").edges
    assert set(one["cell_type"]) == {"type 2"}
    two = compare(treated, "batch", data=cells, conditions=("0", "2")).edges
    assert {"weight_0", "weight_2"} <= set(two)


def test_activity_is_that_of_known_regulons_between_the_conditions(treated, cells):
    activity = compare(treated, "treated", data=cells).activity
    assert (activity["q_value"] < 1e-3).all() and (activity["targets"] == 10).all()
    difference = activity["activity_yes"] - activity["activity_no"]
    np.testing.assert_allclose(activity["effect"], difference, atol=1e-5)
    effect = activity.set_index(["cell_type", "regulator"])["effect"].unstack()
    assert effect.shape == (2, 2) and (effect["A"] > 0).all() and (effect["B"] < 0).all()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"by": "treat"}, "by"),
        ({"by": "batch"}, "conditions"),
        ({"by": "batch", "group": "batch"}, "group"),
        ({"by": "treated", "cell_type": "type 7"}, "cell_type"),
        ({"by": "treated", "data": None}, None),  # cells in memory are to be given again
    ],
)
def test_what_cannot_be_compared_is_refused(treated, cells, options, field):
    with pytest.raises((DataError, ConfigError)) as caught:
        compare(treated, **{"data": cells} | options)
    assert field is None or caught.value.field == field
