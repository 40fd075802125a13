"""grn.export: a choice of edges as a file, from whatever holds a network."""

from __future__ import annotations

import pandas as pd
import pytest

import grn
from grn.cli.main import main
from grn.errors import ConfigError, DataError, RunFolderError


def test_from_a_run_its_folder_and_the_command_the_same_is_written(tiny_run, tmp_path, capsys):
    run = grn.load(tiny_run)
    one = grn.export(run, tmp_path / "one.csv", format="csv", cell_type="type 2", sign="up", top_k=1, quiet=True)
    grn.export(tiny_run, tmp_path / "two.csv", format="csv", cell_type="type 2", sign="up", top_k=1, quiet=True)
    assert capsys.readouterr().out == ""
    options = ["--cell-type", "type 2", "--sign", "up", "--top-k", "1", "--format", "csv"]
    assert main(["export", str(tiny_run), "--output", str(tmp_path / "three.csv"), *options]) == 0
    said = capsys.readouterr().out
    assert f"Wrote {len(one)} edges, {len(one)} up and 0 down, from" in said and "(type 2)" in said
    texts = {(tmp_path / f"{name}.csv").read_text() for name in ("one", "two", "three")}
    assert len(texts) == 1
    table = grn.network(run, cell_type="type 2")
    expected = table[table["weight"] > 0].groupby("target", sort=False).head(1).reset_index(drop=True)
    pd.testing.assert_frame_equal(one, expected)


def test_all_edges_of_a_run_are_its_table(tiny_run, tmp_path):
    written = grn.export(tiny_run, tmp_path / "all.parquet", format="parquet", quiet=True)
    edges = pd.read_parquet(tiny_run / "edges.parquet")
    pd.testing.assert_frame_equal(written, edges[edges["weight"] != 0].reset_index(drop=True))
    found = grn.read_network(tmp_path / "all.parquet")
    assert found["weight"].tolist() == written["weight"].tolist()


def test_another_readout_is_read_again_before_it_is_written(tiny_run, tmp_path, capsys):
    options = ["--readout", "knockout", "--format", "h5ad", "--output", str(tmp_path / "knockout.h5ad")]
    assert main(["export", str(tiny_run), *options]) == 0
    said = capsys.readouterr().out
    assert "knockout.h5ad" in said and "network.h5ad" not in said
    adata = grn.read_network(tmp_path / "knockout.h5ad")
    assert len(adata)
    import anndata

    assert anndata.read_h5ad(tmp_path / "knockout.h5ad").uns["grn"]["readout"] == "knockout"
    assert [path.name for path in tmp_path.iterdir()] == ["knockout.h5ad"]


def test_regulators_may_be_names_or_a_file(tiny_run, tmp_path):
    (tmp_path / "list.txt").write_text("R1\nR3\n")
    for number, regulators in enumerate((["R1", "R3"], "R1, R3", tmp_path / "list.txt", str(tmp_path / "list.txt"))):
        path = tmp_path / f"{number}.gmt"
        found = grn.export(tiny_run, path, format="gmt", regulators=regulators, quiet=True)
        assert set(found["source"]) == {"R1", "R3"}


def test_targets_are_chosen_by_the_command_as_in_python_and_absent_ones_are_named(tiny_run, tmp_path, capsys):
    gene = str(grn.load(tiny_run).edges["target"].iloc[0])
    found = grn.export(tiny_run, tmp_path / "python.csv", format="csv", targets=[gene], quiet=True)
    assert set(found["target"]) == {gene}
    options = ["--targets", f"{gene}, nowhere", "--format", "csv", "--output", str(tmp_path / "command.csv")]
    assert main(["export", str(tiny_run), *options]) == 0
    assert "1 of the targets that were asked for have no edge in this network: 'nowhere'." in capsys.readouterr().out
    assert (tmp_path / "command.csv").read_text() == (tmp_path / "python.csv").read_text()


def test_a_table_with_several_types_needs_one_of_them(tiny_run, tmp_path):
    table = pd.read_parquet(tiny_run / "edges_by_type.parquet")
    with pytest.raises(DataError, match=r"edges of several cell types \('type 1', 'type 2'\); give cell_type="):
        grn.export(table, tmp_path / "net.csv", format="csv", quiet=True)
    found = grn.export(table, tmp_path / "net.csv", format="csv", cell_type="type 1", quiet=True)
    assert len(found) == (table.loc[table["cell_type"] == "type 1", "weight"] != 0).sum()


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"format": "xlsx"}, ConfigError, "format= is 'xlsx'; the formats are parquet"),
        ({"format": "gmt"}, ConfigError, r"format= gmt writes one file whose name ends in \.gmt"),
        ({"cell_type": "B"}, DataError, "cell_type= is 'B', which has no network; those are 'type 1', 'type 2'"),
        ({"min_weight": 1e9}, DataError, "none passes min_weight= 1000000000.0"),
        ({"network": "nowhere"}, DataError, "nowhere"),
    ],
)
def test_what_cannot_be_written_is_one_sentence_and_leaves_nothing(options, error, sentence, tiny_run, tmp_path):
    path = tmp_path / "net.csv"
    with pytest.raises(error, match=sentence):
        grn.export(**{"network": tiny_run, "output": path, "format": "csv", "quiet": True, **options})
    assert not list(tmp_path.iterdir())


def test_a_file_is_never_replaced(tiny_run, tmp_path):
    (tmp_path / "net.csv").write_text("mine")
    with pytest.raises(RunFolderError, match=r"net\.csv already exists and is not overwritten; give output= another"):
        grn.export(tiny_run, tmp_path / "net.csv", format="csv", quiet=True)
    assert (tmp_path / "net.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--min-weight", "1"], "--min-weight chooses the edges of one file; name its format with --format"),
        (["--format", "gmt"], "--format gmt writes one file whose name ends in .gmt, and --output is"),
        (["--format", "loom"], "--format is 'loom'; the formats are parquet, csv,"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_the_command(arguments, sentence, tiny_run, tmp_path, capsys):
    assert main(["export", str(tiny_run), "--output", str(tmp_path / "out"), *arguments]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())
