"""grn.export: a choice of edges as a file, from whatever holds a network."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import grn
from grn.runtime.errors import ConfigError, DataError, RunFolderError


def test_from_a_run_and_its_folder_the_same_is_written(tiny_run, tmp_path, capsys):
    run = grn.load(tiny_run)
    options = {
        "format": "csv",
        "cell_type": "type 2",
        "sign": "up",
        "top_k": 1,
        "certain": False,
        "quiet": True,
    }
    one = grn.export(run, tmp_path / "one.csv", **options)
    grn.export(tiny_run, tmp_path / "two.csv", **options)
    assert capsys.readouterr().out == ""
    assert (tmp_path / "one.csv").read_text() == (tmp_path / "two.csv").read_text()
    table = grn.network(run, cell_type="type 2")
    strongest = table[table["weight"] > 0].groupby("target")["weight"].idxmax()
    expected = table.loc[sorted(strongest)].reset_index(drop=True)
    pd.testing.assert_frame_equal(one, expected)


def test_all_edges_of_a_run_are_its_table(tiny_run, tmp_path):
    written = grn.export(
        tiny_run, tmp_path / "all.parquet", format="parquet", certain=False, quiet=True
    )
    edges = pd.read_parquet(tiny_run / "edges.parquet")
    pd.testing.assert_frame_equal(written, edges[edges["weight"] != 0].reset_index(drop=True))
    found = grn.read_network(tmp_path / "all.parquet", certain=False)
    assert found["weight"].tolist() == written["weight"].tolist()


@pytest.mark.parametrize(
    ("format", "ending"), [("pyscenic", "tsv"), ("cytoscape", "cyjs"), ("beeline", "csv")]
)
def test_what_was_written_is_read_back_with_its_signs(format, ending, tiny_run, tmp_path):
    written = grn.export(
        tiny_run, tmp_path / f"net.{ending}", format=format, certain=False, quiet=True
    )
    found = grn.read_network(tmp_path / f"net.{ending}", certain=False)
    assert (written["weight"] < 0).any()
    pd.testing.assert_frame_equal(
        found[["source", "target", "weight"]],
        written[["source", "target", "weight"]].astype({"weight": float}),
    )


def sources(network, folder, **options) -> list[str]:
    """Of the edges that are written, in their order."""
    path = folder / f"{len(list(folder.iterdir()))}.csv"
    return grn.export(network, path, format="csv", quiet=True, **options)["source"].tolist()


def test_edges_that_are_certain_are_written_unless_others_are_asked_for(tmp_path):
    """A to D on x, from the strongest; C is certain by an intervention alone."""
    table = pd.DataFrame({"source": list("ABCD"), "target": "x", "weight": [4.0, 3.0, 2.0, 1.0]})
    caused, known = [0.9, 0.9, 0.01, np.nan], table.assign(q_value=[0.06, 0.05, 0.7, 0.01])
    assert sources(known, tmp_path) == ["D", "B"]
    assert sources(known.assign(caused_q=caused), tmp_path) == ["D", "B", "C"]
    assert sources(known, tmp_path, max_q_value=0.1) == ["D", "B", "A"]
    assert sources(known, tmp_path, certain=False) == ["D", "B", "A", "C"]
    assert sources(known, tmp_path, certain=False, top_k=2) == ["B", "A"], (
        "the strongest ones, then by q-value"
    )
    assert sources(table, tmp_path) == list("ABCD"), "without q-values a network is written whole"


def test_effects_are_written_with_their_errors(tiny_run, tmp_path):
    written = grn.export(tiny_run, tmp_path / "net.csv", format="csv", certain=False, quiet=True)
    read = pd.read_csv(tmp_path / "net.csv")
    assert list(read)[:6] == ["source", "target", "weight", "sd", "effect", "effect_se"]
    np.testing.assert_allclose(
        read[["effect", "effect_se"]], written[["effect", "effect_se"]], rtol=1e-6
    )


def test_a_table_with_several_types_needs_one_of_them(tiny_run, tmp_path):
    table = pd.read_parquet(tiny_run / "edges_by_type.parquet")
    with pytest.raises(DataError) as caught:
        grn.export(table, tmp_path / "net.csv", format="csv", quiet=True)
    assert caught.value.field == "cell_type"
    options = {"format": "csv", "cell_type": "type 1", "certain": False, "quiet": True}
    found = grn.export(table, tmp_path / "net.csv", **options)
    assert len(found) == (table.loc[table["cell_type"] == "type 1", "weight"] != 0).sum()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"format": "xlsx"}, ConfigError),
        ({"sign": "both"}, ConfigError),
        ({"top_k": 0}, ConfigError),
        ({"cell_type": "B"}, DataError),
        ({"min_weight": 1e9}, DataError),
        ({"regulators": []}, DataError),
        ({"network": "nowhere"}, DataError),
        ({"certain": True}, DataError),  # no edge of so small a run is
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(options, error, tiny_run, tmp_path):
    with pytest.raises(error) as caught:
        grn.export(
            **{
                "network": tiny_run,
                "output": tmp_path / "net.csv",
                "format": "csv",
                "certain": False,
                "quiet": True,
            }
            | options
        )
    assert caught.value.field in (*options, None)
    assert not list(tmp_path.iterdir())


def test_a_file_is_never_replaced(tiny_run, tmp_path):
    (tmp_path / "net.csv").write_text("mine")
    with pytest.raises(RunFolderError, match="not overwritten"):
        grn.export(tiny_run, tmp_path / "net.csv", format="csv", certain=False, quiet=True)
    assert (tmp_path / "net.csv").read_text() == "mine"
