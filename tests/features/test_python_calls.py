"""Calls from Python that gave a wrong answer without a word, another library's error, or advice
that does not help.
"""

from __future__ import annotations

import pytest

import grn
from grn.cells.simulated.cells import simulate
from grn.runtime.errors import DataError

FEW = {"model.members": 2}


@pytest.fixture(scope="module")
def cells(tiny_run):
    return simulate(grn.load(tiny_run).config.data.simulated)


@pytest.fixture(scope="module")
def labelled(cells):
    return grn.train(cells, label="cell_type", max_steps=2, set=FEW, quiet=True)


@pytest.fixture(scope="module")
def unlabelled(cells):
    return grn.train(cells, max_steps=2, set=FEW, quiet=True)


def test_confidences_of_merged_types_are_at_most_one(cells, labelled):
    names = dict.fromkeys(labelled.cell_types, "cell")
    predicted = grn.predict(cells, labelled, map=names, copy=True, quiet=True)
    assert predicted.obs["grn_cell_type_confidence"].max() <= 1


def test_what_is_not_there_can_be_left_out(cells, labelled, unlabelled):
    with pytest.raises(DataError, match="X_umap"):
        grn.perturb(labelled, knock_out=labelled.edges["source"][0], basis="X_umap", data=cells)
    with pytest.raises(DataError, match="no cell type 'T'"):
        grn.read_network(unlabelled, cell_type="T")


def test_edges_in_parquet_are_no_cells(tmp_path, labelled):
    path = tmp_path / "edges.parquet"
    labelled.edges.to_parquet(path)
    for call in (grn.network, grn.train, lambda given: grn.predict(given, labelled)):
        with pytest.raises(DataError, match=r"edges\.parquet has another format"):
            call(path)


def test_activity_by_a_network_without_signs_says_so(cells, labelled, capsys):
    edges = labelled.edges[["source", "target", "weight"]]
    grn.activity(cells, edges)
    assert "No weight" not in capsys.readouterr().out
    grn.activity(cells, edges.assign(weight=edges["weight"].abs()))
    assert (
        "No weight of the network is negative, as in networks without signs"
        in capsys.readouterr().out
    )
