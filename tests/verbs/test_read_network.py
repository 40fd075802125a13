"""`grn.read_network`: networks of ours and of others as decoupler takes them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import grn
from grn.errors import ConfigError, DataError

EDGES = pd.DataFrame({"source": ["A", "B"], "target": ["x", "y"], "weight": [2.0, -1.0]})


@pytest.fixture
def run(tiny_run):
    return grn.load(tiny_run)


@pytest.mark.parametrize("ending", ["csv", "tsv.gz", "parquet"])
def test_tables_of_other_tools_are_known_by_their_columns(ending, tmp_path):
    """The columns of every tool are tested with the files of networks."""
    table, path = EDGES.set_axis(["TF", "target", "importance"], axis="columns"), tmp_path / f"edges.{ending}"
    if ending == "parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="," if ending == "csv" else "\t")
    pd.testing.assert_frame_equal(grn.read_network(str(path)), EDGES)


def test_every_form_of_a_run_gives_the_same_table(run):
    expected = grn.read_network(run)
    further = ["within", "between", "indirect", "confidence", "q_value"]
    assert expected.columns.tolist() == ["source", "target", "weight", *further]
    np.testing.assert_array_equal(expected["weight"], run.edges["weight"])
    assert expected["weight"].dtype == np.float64 and not expected.duplicated(["source", "target"]).any()
    for form in (run.folder, str(run.folder), run.folder / "edges.parquet"):
        pd.testing.assert_frame_equal(grn.read_network(form), expected)
    nonzero = expected[expected["weight"] != 0].drop(columns=further).sort_values(["source", "target"])
    texts = {"source": object, "target": object}  # pandas 3 has a type of its own for texts
    for form in (run.network, run.folder / "network.h5ad"):
        found = grn.read_network(form).sort_values(["source", "target"])
        both = [table.reset_index(drop=True).astype(texts) for table in (found, nonzero)]
        pd.testing.assert_frame_equal(*both)
        assert found["weight"].abs().sort_index().is_monotonic_decreasing


def test_the_edges_of_types_keep_their_type(run):
    table = grn.read_network(run.folder / "edges_by_type.parquet")
    assert {"within", "between", "confidence", "cell_type"} <= set(table)
    expected = pd.read_parquet(run.folder / "edges_by_type.parquet")
    assert table["cell_type"].tolist() == expected["cell_type"].astype(str).tolist()
    np.testing.assert_allclose(table["within"], expected["within"])


def test_cell_types_have_networks_of_their_own(run):
    forms = (run, run.folder, run.folder / "network.h5ad", run.folder / "edges.parquet", run.network)
    for number, label in enumerate(run.cell_types, start=1):
        expected = run.network.varp[f"grn_type_{number}"].tocoo()
        for form in forms:
            found = grn.read_network(form, cell_type=label)
            assert found.columns.tolist() == ["source", "target", "weight"] and len(found) == expected.nnz
            assert found["weight"].abs().is_monotonic_decreasing and found["weight"].dtype == np.float64
            target, source = (run.network.var_names.get_indexer(found[name]) for name in ("target", "source"))
            weights = np.asarray(run.network.varp[f"grn_type_{number}"][target, source]).ravel()
            np.testing.assert_array_equal(found["weight"], weights)


def test_unknown_types_and_files_are_refused_with_the_nearest_name(run, tmp_path):
    EDGES.to_csv(tmp_path / "edges.csv", index=False)
    for network, cell_type in ((run, "type 3"), (tmp_path / "edges.csv", "B"), ("nowhere.csv", None)):
        with pytest.raises(DataError):
            grn.read_network(network, cell_type=cell_type)
    with pytest.raises(ConfigError) as caught:
        grn.read_network(5)
    assert caught.value.field == "network"


@pytest.mark.parametrize("readout", ["effect", "attention", "knockout"])
def test_a_run_is_read_again_with_another_readout(run, readout):
    """q-values are about effects alone; those of a run do not prevent another read-out of it."""
    found = grn.read_network(run, readout=readout)
    assert len(found) == 4 * 15 and ("q_value" in found) == (readout == "effect")
    assert found.attrs["sign"].startswith("positive")
    of_type = grn.read_network(run.folder, readout=readout, cell_type="type 1")
    assert len(of_type) == 4 * 15 and not np.allclose(of_type["weight"], found["weight"])
    if readout == "effect":
        pd.testing.assert_series_equal(found["weight"], run.edges["weight"].astype("float64"), check_exact=True)


def test_a_score_needs_no_cells_and_has_heads(run):
    heads = [grn.read_network(run, layer=0, head=head, value="score") for head in (0, 1)]
    assert all((head["weight"] < 0).any() and len(head) == 4 * 15 for head in heads)
    assert not heads[0].sort_index().equals(heads[1].sort_index())
    assert heads[0].attrs["sign"].startswith("none")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"layer": 1}, "layer"),
        ({"layer": 0, "head": 2}, "head"),
        ({"layer": 0, "value": "weight"}, "value"),
        ({"layer": 0, "readout": "effect"}, "readout"),
        ({"head": 0}, "head"),
    ],
)
def test_what_cannot_be_read_again_is_refused(run, options, field):
    with pytest.raises(ConfigError) as caught:
        grn.read_network(run, **options)
    assert caught.value.field == field
    with pytest.raises(DataError):
        grn.read_network(run.folder / "edges.parquet", layer=0)
