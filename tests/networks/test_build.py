"""The network of a finished run, read again, and what its file says of how it was read."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from grn.cells.load import load_cells
from grn.config.files import change_config
from grn.errors import RunFolderError
from grn.networks.build import bags_read, read_again
from grn.networks.signed_network import open_network
from grn.regulation.states import States


@pytest.mark.parametrize(
    ("members", "readout", "bags"), [(2, "effect", 80), (2, "attention", 80), (0, "attention", 40), (2, "knockout", 40)]
)
def test_the_number_of_bags_is_that_of_those_read(make_config, tiny_run, members, readout, bags):
    """80 cells of two types; network.cells is 40."""
    config = change_config(make_config(), {"network.readout": readout})
    trained = SimpleNamespace(model=SimpleNamespace(regulation=object() if members else None))
    cells, _ = load_cells(config.data)
    assert bags_read(config, trained, cells) == bags
    assert open_network(tiny_run / "network.h5ad").about["parameters"]["bags"] == 80


def test_a_run_that_is_read_again_has_the_same_network(tiny_run):
    adata, edges, by_type = read_again(tiny_run, {})
    pd.testing.assert_frame_equal(edges, pd.read_parquet(tiny_run / "edges.parquet"), check_exact=True)
    pd.testing.assert_frame_equal(by_type, pd.read_parquet(tiny_run / "edges_by_type.parquet"), check_exact=True)
    whole = open_network(tiny_run / "network.h5ad")
    np.testing.assert_array_equal(adata.varp["grn"].toarray(), whole.weights.toarray())
    few = read_again(tiny_run, {"top_k": 1})[1]
    assert not few.duplicated("target").any() and len(few) == 16


@pytest.mark.parametrize("files", [(), ("model/card.json",), ("config.yaml",), ("log.txt", "config.yaml")])
def test_only_finished_runs_are_read_again(files, tmp_path):
    for name in files:
        Path(tmp_path, "run", name).parent.mkdir(parents=True, exist_ok=True)
        Path(tmp_path, "run", name).touch()
    with pytest.raises(RunFolderError, match="run"):
        read_again(tmp_path / "run", {})


def test_other_states_than_those_of_the_model_are_refused(tiny_run, monkeypatch):
    """The search for states may end differently on another machine."""

    def one(cells, seed):
        return States(np.ones((len(cells), 1), np.float32), ("all cells",), "one")

    monkeypatch.setattr("grn.networks.cells_of_run.states_of", one)
    with pytest.raises(RunFolderError, match="knows 2 states of cells, and 1 are found"):
        read_again(tiny_run, {})
