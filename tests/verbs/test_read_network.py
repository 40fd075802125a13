"""`grn.read_network`: networks of ours and of others as decoupler takes them."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest

import grn
from grn.cli.main import main
from grn.errors import ConfigError, DataError

EDGES = pd.DataFrame({"source": ["A", "B"], "target": ["x", "y"], "weight": [2.0, -1.0]})
COLUMNS = {
    "decoupler": ["source", "target", "weight"],
    "GRNBoost2": ["TF", "target", "importance"],
    "BEELINE": ["Gene1", "Gene2", "EdgeWeight"],
    "GENIE3": ["regulatoryGene", "targetGene", "weight"],
}


@pytest.fixture
def run(tiny_run):
    return grn.load(tiny_run)


@pytest.mark.parametrize("tool", COLUMNS)
@pytest.mark.parametrize("ending", ["csv", "tsv.gz", "parquet"])
def test_tables_of_other_tools_are_known_by_their_columns(tool, ending, tmp_path):
    table, path = EDGES.set_axis(COLUMNS[tool], axis="columns"), tmp_path / f"edges.{ending}"
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


def test_columns_without_numbers_are_left_out(tmp_path):
    """As within and between are of read-outs that do not tell them apart."""
    EDGES.assign(within=np.nan, between=[0.5] * len(EDGES)).to_parquet(tmp_path / "edges.parquet")
    assert list(grn.read_network(tmp_path / "edges.parquet")) == ["source", "target", "weight", "between"]


def test_a_table_that_is_changed_leaves_the_run_alone(run):
    before = run.edges.copy()
    grn.read_network(run)["weight"] = 0.0
    pd.testing.assert_frame_equal(run.edges, before)


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


def test_an_unknown_cell_type_is_named_with_the_nearest(run):
    with pytest.raises(DataError, match=r"no cell type 'type 3'; did you mean 'type [12]'\?"):
        grn.read_network(run, cell_type="type 3")
    with pytest.raises(DataError, match=r"no cell type 'B'; it has 'type 1', 'type 2'\."):
        grn.read_network(run, cell_type="B")


def test_tables_have_no_cell_types(run, tmp_path):
    EDGES.to_csv(tmp_path / "edges.csv", index=False)
    with pytest.raises(DataError, match=r"edges\.csv has no networks of cell types; give a run"):
        grn.read_network(tmp_path / "edges.csv", cell_type="B")
    shutil.copy(run.folder / "edges.parquet", tmp_path)
    with pytest.raises(DataError, match=r"no networks of cell types"):
        grn.read_network(tmp_path, cell_type="type 1")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("nowhere.csv", r"nowhere\.csv does not exist"),
    ],
)
def test_what_is_no_network_is_one_sentence(value, sentence):
    with pytest.raises(DataError, match=sentence):
        grn.read_network(value)


def test_q_values_stay_beside_the_weights(tmp_path):
    EDGES.assign(confidence=[0.9, 0.5], q_value=[0.01, 0.2]).to_parquet(tmp_path / "edges.parquet")
    assert grn.read_network(tmp_path)["q_value"].tolist() == [0.01, 0.2]


@pytest.mark.parametrize("cell_type", [None, "type 1"])
def test_a_layer_is_what_the_command_writes(run, cell_type, tmp_path):
    """From a run, its folder, and as a file; the key of varp is the mean over the cells that the run read."""
    options = {"layer": 0, "cells": "all", "cell_type": cell_type}
    found = grn.read_network(run, **options)
    assert list(found) == ["source", "target", "weight"] and found["weight"].is_monotonic_decreasing
    arguments = ["--layer", "0", "--cells", "all", "--format", "csv", "--output", str(tmp_path / "a.csv")]
    arguments += [] if cell_type is None else ["--cell-type", cell_type]
    assert main(["export", str(run.folder), *arguments]) == 0
    pd.testing.assert_frame_equal(grn.read_network(tmp_path / "a.csv"), found[found["weight"] > 0], rtol=1e-5)
    written = grn.export(run.folder, tmp_path / "b.csv", format="csv", top_k=1, quiet=True, **options)
    assert (tmp_path / "b.csv").exists() and len(written) == 16
    as_configured = grn.read_network(run.folder, layer=0)
    adata = run.network
    rows, columns = (adata.var_names.get_indexer(as_configured[end]) for end in ("target", "source"))
    held = adata.varp["grn_attention_layer0"].toarray()
    np.testing.assert_allclose(held[rows, columns], as_configured["weight"], rtol=1e-4)


def test_a_score_needs_no_cells_and_has_heads(run):
    heads = [grn.read_network(run, layer=0, head=head, value="score") for head in (0, 1)]
    assert all((head["weight"] < 0).any() and len(head) == 4 * 15 for head in heads)
    assert not heads[0].sort_index().equals(heads[1].sort_index())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"layer": 1}, "layer is 1, and this model has the layers 0 to 0"),
        ({"layer": 0, "head": 2}, "head is 2, and a layer of this model has the heads 0 to 1"),
        ({"layer": 0, "value": "weight"}, "value='weight' has signs, .* give head=0 to 1, or value='absolute'"),
        ({"head": 0}, "head is of one layer of the transformer; give layer="),
    ],
)
def test_what_cannot_be_read_of_a_layer_is_one_sentence(run, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        grn.read_network(run, **options)
    with pytest.raises(DataError, match="layer= reads the model of a run; give the run or its folder"):
        grn.read_network(run.folder / "edges.parquet", layer=0)


@pytest.mark.parametrize("choice", [{"layer": "a"}, {"layer": True}, {"layer": 0, "head": 0.5}])
def test_a_layer_that_is_no_number_is_refused(choice, run):
    with pytest.raises(ConfigError, match=r"^(layer|head)= must be "):
        grn.read_network(run, **choice)
