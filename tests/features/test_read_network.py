"""`grn.read_network`: networks of ours and of others as decoupler takes them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import grn
from grn.runtime.errors import ConfigError, DataError

KEY = ["source", "target"]


def test_tables_of_a_run_are_its_edges(run):
    expected = grn.read_network(run, certain=False)
    pd.testing.assert_series_equal(expected["weight"], run.edges["weight"], check_dtype=False)
    assert expected["weight"].dtype == np.float64 and not expected.duplicated(KEY).any()
    for form in (run.folder, str(run.folder), run.folder / "edges.parquet"):
        pd.testing.assert_frame_equal(grn.read_network(form, certain=False), expected)


def dense(network):
    network.varp["grn"] = network.varp["grn"].toarray()
    return network


@pytest.mark.parametrize(
    "form",
    [
        lambda run: run,
        lambda run: run.folder / "edges.parquet",
        lambda run: run.folder / "network.h5ad",
        lambda run: run.network,
        lambda run: dense(run.network.copy()),
    ],
    ids=["run", "table", "file", "network", "dense"],
)
def test_every_form_has_the_weights_of_the_run_and_of_its_types(run, form):
    for key, label in (("grn", None), ("grn_type_1", "type 1"), ("grn_type_2", "type 2")):
        found = grn.read_network(form(run), cell_type=label, certain=False)
        expected = run.network.varp[key].toarray()
        target, source = (run.network.var_names.get_indexer(found[name]) for name in reversed(KEY))
        np.testing.assert_allclose(found["weight"], expected[target, source], rtol=1e-6)
        assert (found["weight"] != 0).sum() == np.count_nonzero(expected)
        by = found["q_value"] if "q_value" in found else -found["weight"].abs()
        assert by.is_monotonic_increasing


def test_only_certain_edges_are_given_where_q_values_are_known(tmp_path):
    """C is certain by an intervention alone; a network of another tool is given whole."""
    table = pd.DataFrame({"source": [*"ABCD"], "target": "x", "weight": [4.0, 3.0, 2.0, 1.0]})
    known = table.assign(q_value=[0.06, 0.05, 0.7, 0.01])
    known.assign(cell_type=[*"aabb"]).to_parquet(tmp_path / "edges.parquet")
    for given, expected in (
        (known, "BD"),
        (known.assign(caused_q=[0.9, 0.9, 0.01, np.nan]), "BCD"),
        (table, "ABCD"),
        (tmp_path / "edges.parquet", "BD"),
    ):
        found = grn.read_network(given)
        assert found["source"].tolist() == [*expected] and found.index.is_monotonic_increasing
        assert grn.read_network(given, certain=False)["source"].tolist() == [*"ABCD"]


def test_a_run_in_which_nothing_is_certain_has_no_certain_edges(run):
    found, every = grn.read_network(run), grn.read_network(run, certain=False)
    assert every["q_value"].min() > 0.05 and found.empty and list(found) == list(every)


@pytest.mark.parametrize("value", ["effect", "score", "weight"])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_block_of_a_run_has_signed_edges(run, layer, value):
    found = grn.read_network(run, layer=layer, value=value)
    assert len(found) == (4 * 3, 4 * 12)[layer] and found["weight"].abs().is_monotonic_decreasing
    regulators = set(run.network.var_names[run.network.var["is_regulator"]])
    assert set(found["source"]) == regulators
    assert (set(found["target"]) <= regulators) == (layer == 0)
    assert found.attrs["sign"].startswith("positive") and (found["weight"] < 0).any()
    of_type = grn.read_network(run.folder, layer=layer, value=value, cell_type="type 1")
    both = found.merge(of_type, on=KEY)
    differs = not np.allclose(both["weight_x"], both["weight_y"], rtol=1e-3)
    # Where states do not deviate in block 1, its scores are the same in all.
    assert len(both) == len(found) and (differs or (layer, value) == (0, "score"))


@pytest.mark.parametrize("layer", [0, 1])
def test_the_effects_of_the_one_head_are_the_network_before_it_is_balanced(run, layer):
    head, whole = grn.read_network(run, layer=layer, head=0), grn.read_network(run, layer=layer)
    pd.testing.assert_frame_equal(head, whole)
    signs = whole.merge(run.edges, on=KEY)
    assert len(signs) == len(whole) and (signs["weight_x"] * signs["weight_y"] > 0).all()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"layer": 2}, "layer"),
        ({"layer": 0, "head": 1}, "head"),
        ({"layer": 0, "value": "absolute"}, "value"),
        ({"head": 0}, "head"),
        ({"value": "score"}, "value"),
        ({"network": 5}, "network"),
    ],
)
def test_what_cannot_be_read_is_refused_under_its_name(run, options, field):
    with pytest.raises(ConfigError) as caught:
        grn.read_network(**{"network": run} | options)
    assert caught.value.field == field


def test_unknown_types_and_files_and_blocks_of_tables_are_refused(run):
    table = run.folder / "edges.parquet"
    for network, options in (
        (run, {"cell_type": "type 3"}),
        ("nowhere.csv", {}),
        (table, {"layer": 0}),
    ):
        with pytest.raises(DataError):
            grn.read_network(network, **options)


@pytest.mark.parametrize("kind", ["Int64", "category", "string", "float16"])
def test_weights_of_any_dtype_are_numbers(kind):
    table = pd.DataFrame({"source": [*"AB"], "target": "x", "weight": [2, -1]})
    found = grn.read_network(table.astype({"weight": kind}))
    assert found["weight"].tolist() == [2, -1]
