"""Mistakes whose first sentence named another cause, or advised what does not help: each is told what it is."""

from __future__ import annotations

import warnings

import anndata
import numpy as np
import pandas as pd
import pytest

import grn
from grn.cells.simulated import simulate
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


def with_gene_column(cells) -> anndata.AnnData:
    changed = cells.copy()
    changed.var["symbol"] = changed.var_names
    return changed


def dense(cells) -> np.ndarray:
    return cells.X.toarray() if hasattr(cells.X, "toarray") else np.asarray(cells.X)


def logs(cells) -> np.ndarray:
    """From which counts can be recovered."""
    counts = np.random.default_rng(0).poisson(2.0, cells.shape) + (np.arange(cells.n_vars) == 0)
    return np.log1p(counts / counts.sum(1, keepdims=True) * 1e4)


def with_x(cells, values) -> anndata.AnnData:
    return anndata.AnnData(values, cells.obs, cells.var)


def with_logs_alone(cells) -> anndata.AnnData:
    return anndata.AnnData(None, cells.obs, cells.var, layers={"log": np.log1p(dense(cells) / 3)})


def truth(run) -> pd.DataFrame:
    return run.edges.head(4)[["source", "target"]].assign(sign=1)


def without(cells, edges: pd.DataFrame) -> anndata.AnnData:
    return cells[:, ~cells.var_names.isin(edges[["source", "target"]].to_numpy().ravel())]


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
    "a column of genes": (
        lambda run, cells: grn.train(with_gene_column(cells), label_key="symbol", set=FEW, quiet=True),
        r"^label_key is 'symbol', which is a column of var and not of obs; give a column of obs or, if the rows are "
        r"genes, exchange rows and columns, as adata\.T does\.$",
    ),
    "a column of genes for labels": (
        lambda run, cells: grn.predict(with_gene_column(cells), run, labels="symbol", quiet=True),
        r"^labels is 'symbol', which is a column of var and not of obs; give a column of obs",
    ),
    "a column that is like no other": (
        lambda run, cells: grn.train(with_column(cells, "time", 1.0), group_key="patient", set=FEW, quiet=True),
        r"^group_key is 'patient', which is not a column of obs; obs has '",
    ),
    "numbers as objects": (
        lambda run, cells: grn.train(with_x(cells, dense(cells).astype(object)), set=FEW, quiet=True),
        r"^X holds values of type object; expression must be numbers: convert them",
    ),
    "a matrix of logs alone": (
        lambda run, cells: grn.predict(with_logs_alone(cells), run, quiet=True),
        r"^The AnnData has no X, and no other matrix of it holds counts; give data with counts\.$",
    ),
    "a layer of expression that is missing": (
        lambda run, cells: grn.train(
            with_logs_alone(cells), values="expression", counts="layer:logs", set=FEW, quiet=True
        ),
        r"^The AnnData has no layer 'logs'; set counts to one of: layer:log\.$",
    ),
    "logs in X, for scores": (
        lambda run, cells: grn.evaluate(run, truth(run), data=with_x(cells, logs(cells)), quiet=True),
        r"give an AnnData with the counts in X, or a configuration with data\.counts: recover\.$",
    ),
    "genes that the cells lack": (
        lambda run, cells: grn.evaluate(run.edges, truth(run), data=without(cells, truth(run)), quiet=True),
        r"use the same kind of names in both or, where it is one already, cells and genes that the reference has\.$",
    ),
    "a type of a table of one network": (
        lambda run, cells: grn.read_network(run.edges, cell_type="T1"),
        r"^cell_type= chooses a network of a run, and this table has one network; give the run instead\.$",
    ),
    "two fields that contradict each other": (
        lambda run, cells: grn.train(cells, label_key="cell_type", group_key="cell_type", quiet=True),
        r"^set label_key='cell_type', group_key='cell_type': group_key and label_key are both",
    ),
    "a field by its initials": (
        lambda run, cells: grn.train(cells, set={"trainer.lr": 0.1}, quiet=True),
        r"trainer\.lr is not a field; did you mean trainer\.learning_rate\?$",
    ),
    "a field that is like no other of its section": (
        lambda run, cells: grn.train(cells, set={"trainer.zz": 0.1}, quiet=True),
        r"trainer\.zz is not a field; trainer has the fields ",
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


def test_a_screen_of_a_run_without_types_says_what_to_do(unlabelled, cells):
    with pytest.raises(UserError, match=r"it has no labels, and no states: train with labels\.$"):
        grn.screen(unlabelled, "a", "b", data=cells, quiet=True)


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
