"""The files of a network say how they were read."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from grn.cells.load import load_cells
from grn.errors import RunFolderError
from grn.networks.export import bags_read, export
from grn.networks.signed_network import open_network
from grn.regulation.states import States


@pytest.mark.parametrize(
    ("members", "readout", "bags"),
    [(2, "effect", 80), (2, "attention", 80), (0, "attention", 40), (2, "knockout", 40)],
)
def test_the_number_of_bags_is_that_of_those_read(make_config, members, readout, bags):
    """80 cells of two types; network.cells is 40."""
    config = make_config()
    network = config.network.model_copy(update={"readout": readout})
    config = config.model_copy(update={"network": network})
    trained = SimpleNamespace(model=SimpleNamespace(regulation=object() if members else None))
    cells, _ = load_cells(config.data)
    assert bags_read(config, trained, cells) == bags


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ((), "run does not exist; give a run folder."),
        (("model/card.json",), "run is not a run folder: it has no config.yaml; give a folder that grn train made."),
        (("config.yaml",), "run/model does not exist; give a run folder or its model/."),
        (
            ("log.txt", "config.yaml"),
            "The run in run was cut off, as model is missing; grn train --resume run goes on with it.",
        ),
    ],
)
def test_only_finished_runs_are_exported(files, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in files:
        Path("run", name).parent.mkdir(parents=True, exist_ok=True)
        Path("run", name).touch()
    with pytest.raises(RunFolderError) as caught:
        export(Path("run"), Path("out"))
    assert str(caught.value) == sentence


def test_network_h5ad_has_the_number_of_bags_that_were_read(tiny_run):
    assert open_network(tiny_run / "network.h5ad").about["parameters"]["bags"] == 80


def test_other_states_than_those_of_the_model_are_refused_before_a_folder_is_made(tiny_run, tmp_path, monkeypatch):
    """The search for states may end differently on another machine."""

    def one(cells, seed):
        return States(np.ones((len(cells), 1), np.float32), ("all cells",), "one")

    monkeypatch.setattr("grn.networks.cells_of_run.states_of", one)
    with pytest.raises(RunFolderError, match=r"knows 2 states of cells, and 1 are found .* --by COLUMN"):
        export(tiny_run, tmp_path / "again", say=lambda line: None)
    assert not (tmp_path / "again").exists()
