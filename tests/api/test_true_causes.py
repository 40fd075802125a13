"""Mistakes whose first sentence named another cause, or advised what does not help: each is told what it is."""

from __future__ import annotations

import warnings

import anndata
import numpy as np
import pandas as pd
import pytest

import grn
from grn.data.simulated import simulate
from grn.errors import ConfigError, UserError

FEW = {"regulation.steps": 2, "regulation.members": 1}


@pytest.fixture(scope="module")
def cells(tiny_run):
    return simulate(grn.load(tiny_run).config.data.simulated)


@pytest.fixture(scope="module")
def unlabelled(cells, tmp_path_factory):
    """A run without cell types, of cells in memory."""
    folder = tmp_path_factory.mktemp("runs") / "unlabelled"
    return grn.train(cells, max_steps=2, set=FEW, output=folder, quiet=True)


def reference(run) -> pd.DataFrame:
    edges = run.edges.head(4)[["source", "target"]]
    return edges.assign(source="x" + edges["source"], sign=1)


def with_column(cells, name: str, values) -> anndata.AnnData:
    changed = cells.copy()
    changed.obs[name] = values
    return changed


CALLS = {
    "cells whose rows are genes": (
        lambda run, cells: grn.predict(cells.T, run),
        r"Its cells have names of the model's genes \('\w+'\): exchange its rows and columns, as adata\.T",
    ),
    "log values that are none": (
        lambda run, cells: grn.predict(anndata.AnnData(cells.X / 3, cells.obs, cells.var), run, counts="recover"),
        r"set counts to a matrix that holds counts\.$",
    ),
    "a type that map renames": (
        lambda run, cells: grn.explain(cells, run, cell_type=run.cell_types[0], map={run.cell_types[0]: "T"}),
        r"which map calls 'T'; give that name",
    ),
    "genes in another order": (
        lambda run, cells: grn.perturb(run, knockout="R1", data=cells[:, ::-1]),
        r"^The AnnData has the genes that .* was trained on in another order",
    ),
    "regulators of another kind": (
        lambda run, cells: grn.evaluate(run, reference(run), quiet=True),
        r"none of these is a source of the reference, whose sources are named like 'x\w+'",
    ),
    "a name in place of a list": (
        lambda run, cells: grn.evaluate(run, reference(run), regulators="R1", quiet=True),
        r"give reference, all, names in a list or a file with one gene a line",
    ),
    "confidences of another kind": (
        lambda run, cells: grn.activity(cells, run.edges.assign(confidence="A"), quiet=True),
        r"confidence is 'A', which is not a number from 0 to 1; correct it, or leave the column out",
    ),
    "confidences in percent": (
        lambda run, cells: grn.activity(cells, run.edges.assign(confidence=95.0), quiet=True),
        r"confidence is '95\.0', which is not a number from 0 to 1",
    ),
    "conditions without a value": (
        lambda run, cells: grn.compare(run, by="empty", data=with_column(cells, "empty", None)),
        r"Column 'empty' of obs holds no labels; give by another column",
    ),
    "donors without a value": (
        lambda run, cells: grn.compare(
            run, by="two", group="empty", data=with_column(with_column(cells, "empty", None), "two", ["a", "b"] * 40)
        ),
        r"Column 'empty' of obs holds no labels; give group another column, or leave it out",
    ),
    "an embedding without its prefix": (
        lambda run, cells: grn.perturb(run, knockout="R1", basis="umap", data=with_umap(cells)),
        r"basis is 'umap', which is not in obsm of the cells; did you mean 'X_umap'\?",
    ),
    "edges in place of a matrix": (
        lambda run, cells: grn.plots.network_heatmaps({"all": run.edges}),
        r"weights\['all'\] is a table of edges.*give the edges by themselves",
    ),
    "two options about cells": (
        lambda run, cells: grn.network(run, label_key="a", seed=1),
        r"label_key, seed are about cells.*leave them out",
    ),
}


def with_umap(cells) -> anndata.AnnData:
    changed = cells.copy()
    changed.obsm["X_umap"] = np.zeros((cells.n_obs, 2))
    return changed


@pytest.mark.parametrize("mistake", CALLS)
def test_the_true_cause_is_named(mistake, tiny_run, cells):
    call, sentence = CALLS[mistake]
    with pytest.raises(UserError, match=sentence):
        call(grn.load(tiny_run), cells)


@pytest.mark.parametrize("option", [{"error": 0.1}, {"labels": "cell_type"}, {"map": {"a": "b"}}])
def test_a_model_without_types_is_the_cause(option, cells, unlabelled):
    name = next(iter(option))
    with pytest.raises(ConfigError, match=f"^{name} is about cell types, .* without labels; leave it out, or train"):
        grn.predict(cells, unlabelled, quiet=True, **option)


def test_targets_and_min_targets_that_exclude_each_other(cells, tiny_run):
    pytest.importorskip("decoupler")
    with pytest.raises(ConfigError, match="targets is 3 and min_targets 5, so that no regulator has enough"):
        grn.activity(cells, tiny_run, targets=3, min_targets=5)


def test_activity_of_a_view_warns_of_nothing(cells, tiny_run):
    pytest.importorskip("decoupler")
    with warnings.catch_warnings():
        warnings.simplefilter("error", anndata.ImplicitModificationWarning)
        grn.activity(cells[:5], tiny_run, min_targets=1, quiet=True)


@pytest.mark.parametrize("call", [grn.train, grn.export, grn.read_network, grn.plots.clustered_heatmap])
def test_arguments_that_need_a_name_are_listed(call):
    with pytest.raises(ConfigError, match=r"may stand without a name, all else has one: \w+=\.\.\., "):
        call(*["a"] * 9)


def test_the_table_of_types_beside_a_network_knows_its_types(tiny_run):
    run = grn.load(tiny_run)
    found = grn.read_network(tiny_run / "edges_by_type.parquet", cell_type=run.cell_types[0])
    pd.testing.assert_frame_equal(found, grn.read_network(run, cell_type=run.cell_types[0]))


def test_a_field_is_given_once_however_it_is_written(cells):
    with pytest.raises(ConfigError, match=r"set has trainer\.max_steps, which is also given as a keyword"):
        grn.train(cells, max_steps=2, set={"trainer": {"max_steps": 5}}, quiet=True)


def test_what_is_read_of_doubtful_names_is_said(cells, capsys):
    doubtful = with_column(cells, "type", ["T", "T "] * (cells.n_obs // 2))
    doubtful.var["symbol"] = [None, *doubtful.var_names[1:]]
    run = grn.network(doubtful, label_key="type", set={**FEW, "data.gene_key": "symbol"})
    printed = capsys.readouterr().out
    assert len(run)
    assert (
        "The labels 'T' and 'T ' differ only in spaces, dashes or upper and lower case, and count as two cell types"
        in printed
    )
    assert f"1 of {cells.n_vars} genes have no name in the column 'symbol' of var (data.gene_key)" in printed


def test_one_label_is_not_called_none(cells, capsys):
    grn.network(with_column(cells, "type", "B"), label_key="type", set=FEW)
    printed = capsys.readouterr().out
    assert "no two labels have several cells each" in printed and "there are no labels" not in printed
