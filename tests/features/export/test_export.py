"""grn.export: a choice of edges as a file, from whatever holds a network."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import grn
from grn.runtime.errors import ConfigError, DataError, RunFolderError


def export(network, output, **options) -> pd.DataFrame:
    return grn.export(
        network, output, **{"format": "csv", "certain": False, "quiet": True} | options
    )


def test_a_choice_of_edges_is_written_whatever_holds_them(run, tmp_path, capsys):
    """The strongest one that raises each target."""
    chosen = {"cell_type": "type 2", "sign": "up", "top_k": 1}
    table = grn.network(run, cell_type="type 2")
    strongest = table[table["weight"] > 0].groupby("target")["weight"].idxmax()
    expected = table.loc[sorted(strongest)].reset_index(drop=True)
    of_types = pd.read_parquet(run.folder / "edges_by_type.parquet")
    for number, network in enumerate((run, run.folder, of_types)):
        path = tmp_path / f"{number}.csv"
        written = export(network, path, **chosen)
        pd.testing.assert_frame_equal(written, expected, check_dtype=False)
        read = pd.read_csv(path, keep_default_na=False)
        pd.testing.assert_frame_equal(read, expected, check_dtype=False, rtol=1e-5)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("format", "ending"),
    [("parquet", "parquet"), ("pyscenic", "tsv"), ("cytoscape", "cyjs"), ("beeline", "csv")],
)
def test_what_was_written_is_read_back_with_its_signs(format, ending, run, tmp_path):
    written = export(run, tmp_path / f"net.{ending}", format=format)
    assert len(written) == (run.edges["weight"] != 0).sum() and (written["weight"] < 0).any()
    found = grn.read_network(tmp_path / f"net.{ending}", certain=False)
    columns = ["source", "target", "weight"]
    pd.testing.assert_frame_equal(found[columns], written[columns], check_dtype=False)


@pytest.mark.parametrize(
    ("options", "caused", "sources"),
    [
        ({}, 0.9, "DB"),
        ({}, 0.01, "DBC"),
        ({"max_q_value": 0.1}, 0.9, "DBA"),
        ({"certain": False}, 0.9, "DBAC"),
        ({"certain": False, "top_k": 2}, 0.9, "BA"),  # the strongest ones, then by q-value
    ],
)
def test_certain_edges_are_written_unless_others_are_asked_for(options, caused, sources, tmp_path):
    """A to D on x, from the strongest. caused: the q-value of an intervention on C."""
    table = pd.DataFrame({"source": [*"ABCD"], "target": "x", "weight": [4.0, 3.0, 2.0, 1.0]})
    known = table.assign(q_value=[0.06, 0.05, 0.7, 0.01], caused_q=[0.9, 0.9, caused, np.nan])
    written = export(known, tmp_path / "net.csv", **{"certain": True} | options)
    assert written["source"].tolist() == [*sources]


def test_a_network_without_q_values_is_written_whole(tmp_path):
    table = pd.DataFrame({"source": [*"AB"], "target": "x", "weight": [4.0, 3.0]})
    assert len(export(table, tmp_path / "net.csv", certain=True)) == 2


def test_a_table_with_several_types_needs_one_of_them(run, tmp_path):
    table = pd.read_parquet(run.folder / "edges_by_type.parquet")
    with pytest.raises(DataError) as caught:
        export(table, tmp_path / "net.csv")
    assert caught.value.field == "cell_type"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"format": "xlsx"}, ConfigError),
        ({"sign": "both"}, ConfigError),
        ({"cell_type": "B"}, DataError),
        ({"min_weight": 1e9}, DataError),
        ({"regulators": []}, DataError),
        ({"certain": True}, DataError),  # no edge of so small a run is
    ],
    ids=str,
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(options, error, run, tmp_path):
    with pytest.raises(error) as caught:
        export(run, tmp_path / "net.csv", **options)
    assert caught.value.field in (*options, None) and not list(tmp_path.iterdir())


def test_a_file_is_never_replaced(run, tmp_path):
    (tmp_path / "net.csv").write_text("mine")
    with pytest.raises(RunFolderError, match="not overwritten"):
        export(run, tmp_path / "net.csv")
    assert (tmp_path / "net.csv").read_text() == "mine"
