"""Runs, tables and cells in odd forms, from Python: read for what they are, or refused for what is
wrong.
"""

from __future__ import annotations

import os
import shutil
from decimal import Decimal

import anndata
import numpy as np
import pandas as pd
import pytest

import grn
from grn.runtime.errors import RunFolderError, UserError

EDGES = pd.DataFrame(
    {"source": ["R1", "R2", "R1"], "target": ["G1", "G2", "G3"], "weight": [1.0, -2.0, 0.5]}
)


# Runs


@pytest.mark.parametrize(
    "use",
    [
        lambda run: run.edges,
        lambda run: run.config,
        lambda run: run.save(run.folder.with_name("third")),
        lambda run: grn.predict(anndata.AnnData(np.ones((2, 2))), run),
        lambda run: grn.network(run, cell_type="T1"),
        grn.plots.network_graph,
    ],
)
def test_a_run_whose_folder_was_moved_says_so(use, tiny_run, tmp_path):
    run = grn.load(shutil.copytree(tiny_run, tmp_path / "first"))
    run.folder.rename(tmp_path / "second")
    with pytest.raises(RunFolderError, match="first"):
        use(run)
    assert os.listdir(tmp_path) == ["second"]


@pytest.mark.parametrize("name", ["network.h5ad", "confusion.csv"])
def test_a_file_of_a_run_that_is_gone_is_named(name, tiny_run, tmp_path):
    run = grn.load(shutil.copytree(tiny_run, tmp_path / "run"))
    (run.folder / name).unlink()
    with pytest.raises(UserError, match=name):
        getattr(run, name.partition(".")[0])


def test_a_run_is_found_from_another_working_folder(tiny_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tiny_run.parent)
    run = grn.load(tiny_run.name)
    monkeypatch.chdir(tmp_path)
    assert len(run.edges) and run.folder == tiny_run


# Tables and networks


@pytest.mark.parametrize(
    "kind", ["Int64", "Float32", "category", "float16", ">f8", "string", "decimal"]
)
def test_numbers_of_any_dtype_are_numbers(kind):
    weight = EDGES["weight"].round()
    table = EDGES.assign(
        weight=list(map(Decimal, map(str, weight))) if kind == "decimal" else weight.astype(kind)
    )
    assert grn.read_network(table)["weight"].tolist() == [1.0, -2.0, 0.0]


def test_a_dense_network_is_one(tiny_run):
    run = grn.load(tiny_run)
    network, table = run.network.copy(), run.network.copy()
    network.varp["grn"] = network.varp["grn"].toarray()
    table.varp["grn"] = pd.DataFrame(
        network.varp["grn"], index=network.var_names, columns=network.var_names
    )
    expected = grn.read_network(run.network)
    for each in (network, table):
        pd.testing.assert_frame_equal(grn.read_network(each), expected)
