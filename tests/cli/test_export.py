"""`grn export`: the network of one cell type, and those of other groups of cells."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest

from grn.cli.main import main
from grn.config.files import change_config, dump_config, load_config
from grn.networks.signed_network import open_network


def test_one_cell_type_is_written_as_the_network(tiny_run, tmp_path, capsys):
    assert main(["export", str(tiny_run), "--output", str(tmp_path / "one"), "--cell-type", "type 2"]) == 0
    edges = pd.read_parquet(tmp_path / "one" / "edges.parquet")
    table = pd.read_parquet(tiny_run / "edges_by_type.parquet")
    expected = table[table["cell_type"] == "type 2"].drop(columns="cell_type").reset_index(drop=True)
    pd.testing.assert_frame_equal(edges, expected)
    network, whole = open_network(tmp_path / "one" / "network.h5ad"), open_network(tiny_run / "network.h5ad")
    np.testing.assert_array_equal(network.weights.toarray(), whole.by_type["type 2"].toarray())
    assert not network.by_type and network.about["cell_type"] == "type 2"
    assert pd.read_parquet(tmp_path / "one" / "edges_by_type.parquet").empty


def test_groups_of_a_column_are_states_in_place_of_the_runs(tiny_run, tmp_path, capsys):
    """The column of the labels gives the states of the run itself, and nearly its network."""
    assert main(["export", str(tiny_run), "--output", str(tmp_path / "by"), "--by", "cell_type"]) == 0
    assert "2 groups of cell_type: type 1, type 2." in capsys.readouterr().out
    network, whole = open_network(tmp_path / "by" / "network.h5ad"), open_network(tiny_run / "network.h5ad")
    assert set(network.by_type) == set(whole.by_type) == {"type 1", "type 2"}
    of_type = pd.read_parquet(tmp_path / "by" / "edges_by_type.parquet")
    expected = pd.read_parquet(tiny_run / "edges_by_type.parquet")
    keys = ["cell_type", "source", "target"]
    merged = of_type.merge(expected, on=keys)
    assert len(merged) == len(expected) and np.corrcoef(merged["between_x"], merged["between_y"])[0, 1] > 0.99
    found = network.about["found"]
    assert found["label"].tolist() == ["all cells", "type 1", "type 2"]


@pytest.mark.parametrize(
    ("changed", "value"),
    [("simulated.seed", 1), ("multiplicity", "log1p"), ("label_key", None), ("test_fraction", 0.3)],
)
def test_cells_that_the_run_was_not_trained_on_are_refused(changed, value, tiny_run, tmp_path, capsys):
    """Another seed of the simulation is what another file at the same path is: the same genes, other counts."""
    shutil.copytree(tiny_run, tmp_path / "run")
    config = load_config(tiny_run / "config.yaml")
    (tmp_path / "run" / "config.yaml").write_text(dump_config(change_config(config, {f"data.{changed}": value})))
    for command in (["export", "--output", str(tmp_path / "out")], ["compare", "--by", "cell_type"]):
        assert main([command[0], str(tmp_path / "run"), *command[1:]]) == 2
        assert "are not those that" in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--cell-type", "typ"], "--cell-type is 'typ', which has no network; those are 'type 1', 'type 2'."),
        (["--by", "cell_typ"], "--by is 'cell_typ', which is not a column of obs; did you mean 'cell_type'?"),
        (["--by", "cell_type", "--readout", "knockout"], "--by fits the regulation layers and reads their effects"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence_and_leaves_nothing(arguments, sentence, tiny_run, tmp_path, capsys):
    assert main(["export", str(tiny_run), "--output", str(tmp_path / "out"), *arguments]) == 2
    shown = capsys.readouterr()
    assert sentence in " ".join((shown.out + shown.err).split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (lambda count: ["one"] * count, "has one group only, 'one'"),
        (lambda count: [f"g{number}" for number in range(count)], "has 80 groups for 80 cells"),
        (lambda count: [None] * count, "holds no labels; give --by another column."),
    ],
)
def test_columns_that_are_no_groups_are_refused(values, sentence, make_config, monkeypatch):
    from grn.cells.load import load_cells
    from grn.errors import DataError
    from grn.networks import export

    config = make_config()
    cells, _ = load_cells(config.data)
    monkeypatch.setattr(export, "read_columns", lambda *_: {"x": pd.Series(values(len(cells)))})
    with pytest.raises(DataError, match=sentence):
        export.groups_of(config, cells, "x")


def test_cells_without_a_group_belong_to_all(make_config, monkeypatch):
    from grn.cells.load import load_cells
    from grn.networks import export

    config = make_config()
    cells, _ = load_cells(config.data)
    column = pd.Series(["a", "b", "b", None] * (len(cells) // 4))
    monkeypatch.setattr(export, "read_columns", lambda *_: {"x": column})
    states = export.groups_of(config, cells, "x")
    assert states.names == ("a", "b") and states.origin == "labels"
    np.testing.assert_allclose(states.membership[:4], [[1, 0], [0, 1], [0, 1], [1 / 3, 2 / 3]], rtol=1e-6)


def test_a_run_with_one_state_has_no_cell_types(make_config, tmp_path):
    from grn.errors import DataError
    from grn.networks.export import export
    from grn.training.run import train

    config = make_config(max_steps=2)
    data = config.data.model_copy(update={"label_key": None})
    train(config.model_copy(update={"data": data}), tmp_path / "run", say=lambda line: None)
    with pytest.raises(DataError, match="this run has one network for all cells") as caught:
        export(tmp_path / "run", tmp_path / "out", cell_type="T", say=lambda line: None)
    assert "--by COLUMN" in str(caught.value) and not (tmp_path / "out").exists()
