"""`grn.read_network`: networks of ours and of others as decoupler takes them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import grn
from grn.runtime.errors import ConfigError, DataError

EDGES = pd.DataFrame({"source": ["A", "B"], "target": ["x", "y"], "weight": [2.0, -1.0]})


def test_every_form_of_a_run_gives_the_same_table(run):
    expected = grn.read_network(run, certain=False)
    further = [
        "sd",
        "effect",
        "effect_se",
        "q_value",
        "confidence",
        "programme",
        "between",
        "indirect",
        "cells",
    ]
    assert expected.columns.tolist() == ["source", "target", "weight", *further]
    np.testing.assert_array_equal(expected["weight"], run.edges["weight"])
    assert (
        expected["weight"].dtype == np.float64
        and not expected.duplicated(["source", "target"]).any()
    )
    for form in (run.folder, str(run.folder), run.folder / "edges.parquet"):
        pd.testing.assert_frame_equal(grn.read_network(form, certain=False), expected)
    nonzero = (
        expected[expected["weight"] != 0].drop(columns=further).sort_values(["source", "target"])
    )
    texts = {"source": object, "target": object}  # pandas 3 has a type of its own for texts
    for form in (run.network, run.folder / "network.h5ad"):
        found = grn.read_network(form).sort_values(["source", "target"])
        both = [table.reset_index(drop=True).astype(texts) for table in (found, nonzero)]
        pd.testing.assert_frame_equal(*both)
        assert found["weight"].abs().sort_index().is_monotonic_decreasing


def test_cell_types_have_networks_of_their_own(run):
    tables = (run, run.folder, run.folder / "edges.parquet")
    matrices = (run.folder / "network.h5ad", run.network)
    for number, label in enumerate(run.cell_types, start=1):
        expected = run.network.varp[f"grn_type_{number}"].tocoo()
        for form in (*tables, *matrices):
            found = grn.read_network(form, cell_type=label, certain=False)
            assert len(found) == expected.nnz and found["weight"].dtype == np.float64
            known = any(form is table for table in tables)
            assert ({"q_value", "confidence", "cells"} <= set(found)) == known
            assert (found["q_value"] if known else -found["weight"].abs()).is_monotonic_increasing
            target, source = (
                run.network.var_names.get_indexer(found[name]) for name in ("target", "source")
            )
            weights = np.asarray(run.network.varp[f"grn_type_{number}"][target, source]).ravel()
            np.testing.assert_array_equal(found["weight"], weights)


def test_only_certain_edges_are_given_where_q_values_are_known(tmp_path):
    """C is certain by an intervention alone; a network of another tool is given whole."""
    table = pd.DataFrame({"source": list("ABCD"), "target": "x", "weight": [4.0, 3.0, 2.0, 1.0]})
    table["q_value"], caused = [0.06, 0.05, 0.7, 0.01], [0.9, 0.9, 0.01, np.nan]
    table.assign(cell_type=["a", "a", "b", "b"]).to_parquet(tmp_path / "edges.parquet")
    for given, expected in (
        (table, "BD"),
        (table.assign(caused_q=caused), "BCD"),
        (table.drop(columns="q_value"), "ABCD"),
        (tmp_path / "edges.parquet", "BD"),
    ):
        found = grn.read_network(given)
        assert found["source"].tolist() == list(expected) and found.index.tolist() == list(
            range(len(expected))
        )
        assert grn.read_network(given, certain=False)["source"].tolist() == list("ABCD")


def test_a_run_in_which_nothing_is_certain_has_no_certain_edges(run):
    found, every = grn.read_network(run), grn.read_network(run, certain=False)
    assert every["q_value"].min() > 0.05 and found.empty and list(found) == list(every)


def test_unknown_types_and_files_are_refused_with_the_nearest_name(run, tmp_path):
    EDGES.to_csv(tmp_path / "edges.csv", index=False)
    for network, cell_type in (
        (run, "type 3"),
        (tmp_path / "edges.csv", "B"),
        ("nowhere.csv", None),
    ):
        with pytest.raises(DataError):
            grn.read_network(network, cell_type=cell_type)
    with pytest.raises(ConfigError) as caught:
        grn.read_network(5)
    assert caught.value.field == "network"


@pytest.mark.parametrize("value", [None, "effect", "score", "weight"])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_block_of_a_run_has_signed_edges(run, layer, value):
    found = grn.read_network(run, layer=layer, value=value)
    regulators = set(run.network.var_names[run.network.var["is_regulator"]])
    assert len(found) == (4 * 3, 4 * 12)[layer] and set(found["source"]) == regulators
    assert (set(found["target"]) <= regulators) == (layer == 0)
    assert found.attrs["sign"].startswith("positive") and (found["weight"] < 0).any()
    assert found["weight"].abs().is_monotonic_decreasing and found["weight"].dtype == np.float64
    of_type = grn.read_network(run.folder, layer=layer, value=value, cell_type="type 1")
    both = found.merge(of_type, on=["source", "target"])
    differs = not np.allclose(both["weight_x"], both["weight_y"], rtol=1e-3)
    # States do not deviate in block 1 of this run, so that its scores are the same in all.
    assert len(both) == len(found) and differs != (layer == 0 and value == "score")


@pytest.mark.parametrize("layer", [0, 1])
def test_the_effects_of_the_one_head_are_the_network_before_it_is_balanced(run, layer):
    head, whole = grn.read_network(run, layer=layer, head=0), grn.read_network(run, layer=layer)
    assert (whole["weight"] != 0).all()
    pd.testing.assert_frame_equal(head, whole)
    signs = whole.merge(run.edges, on=["source", "target"])
    assert len(signs) == len(whole) and (signs["weight_x"] * signs["weight_y"] > 0).all()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"layer": 2}, "layer"),
        ({"layer": 0, "head": 1}, "head"),
        ({"layer": 0, "value": "absolute"}, "value"),
        ({"head": 0}, "head"),
        ({"value": "score"}, "value"),
    ],
)
def test_what_cannot_be_read_again_is_refused(run, options, field):
    with pytest.raises(ConfigError) as caught:
        grn.read_network(run, **options)
    assert caught.value.field == field
    with pytest.raises(DataError):
        grn.read_network(run.folder / "edges.parquet", layer=0)
