"""Values that libraries take for numbers, tables or runs without a word, and that are none: one sentence each."""

from __future__ import annotations

import os
import shutil
import warnings
from decimal import Decimal

import anndata
import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import grn
from grn.errors import DataError, RunFolderError, UserError
from grn.io.atomic import refuse_used_folder

EDGES = pd.DataFrame({"source": ["R1", "R2", "R1"], "target": ["G1", "G2", "G3"], "weight": [1.0, -2.0, 0.5]})


@pytest.fixture
def moved(tiny_run, tmp_path):
    """A run whose folder is somewhere else since it was opened."""
    folder = shutil.copytree(tiny_run, tmp_path / "first")
    run = grn.load(folder)
    folder.rename(tmp_path / "second")
    return run


USES = {
    "edges": lambda run: run.edges,
    "network": lambda run: run.network,
    "config": lambda run: run.config,
    "metrics": lambda run: run.metrics,
    "confusion": lambda run: run.confusion,
    "cell_types": lambda run: run.cell_types,
    "save": lambda run: run.save(run.folder.with_name("third")),
    "load": lambda run: grn.predict(anndata.AnnData(np.ones((2, 2))), run),
    "perturb": lambda run: grn.perturb(run, knockout="R1"),
    "evaluate": lambda run: grn.evaluate(run, EDGES),
    "a type": lambda run: grn.network(run, cell_type="T1"),
    "a layer": lambda run: grn.read_network(run, layer=0),
    "export": lambda run: grn.export(run, run.folder.with_name("edges.csv"), format="csv"),
    "a picture": grn.plots.regulator_dots,
}


@pytest.mark.parametrize("use", USES)
def test_a_run_whose_folder_was_moved_says_so(use, moved):
    with pytest.raises(RunFolderError, match=r"The folder of this run, .*first, does not exist any more; put it back"):
        USES[use](moved)
    assert [path.name for path in moved.folder.parent.iterdir()] == ["second"]


def test_a_file_of_a_run_that_is_gone_is_named(tiny_run, tmp_path):
    run = grn.load(shutil.copytree(tiny_run, tmp_path / "run"))
    (run.folder / "network.h5ad").unlink()
    with pytest.raises(RunFolderError, match=r"network\.h5ad does not exist any more; restore it, or train again"):
        _ = run.network


def test_a_run_is_found_from_another_working_folder(tiny_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tiny_run.parent)
    run = grn.load(tiny_run.name)
    monkeypatch.chdir(tmp_path)
    assert len(run.edges) and run.folder == tiny_run


def test_a_run_is_not_saved_into_itself(tiny_run, tmp_path):
    run = grn.load(shutil.copytree(tiny_run, tmp_path / "run"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunFolderError, match="lies in the folder of the run itself"):
        run.save(tmp_path / "run" / "deep" / "copy")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["x/..", "x/../y/.."])
def test_a_folder_that_leads_back_out_of_itself_is_the_one_that_is_meant(name, tiny_run, tmp_path):
    run = grn.load(tiny_run)
    with pytest.raises(RunFolderError, match="already exists"):
        run.save(tmp_path / name)
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="already exists and is not an empty folder"):
        refuse_used_folder(tmp_path / name)
    assert os.listdir(tmp_path) == ["file"]
    assert run.save(tmp_path / name / "kept") == tmp_path / "kept"


WEIGHTS = {
    "true and false": [True, False, True],
    "complex numbers": [1j, 2j, 3j],
    "dates": pd.to_datetime(["2020-01-01"] * 3),
    "times": pd.to_timedelta([1, 2, 3], unit="s"),
    "true, false or complex values": pd.Series([1.0, True, 2.0], dtype=object),
}


@pytest.mark.parametrize("what", WEIGHTS)
@pytest.mark.parametrize("column", ["weight", "confidence"])
def test_columns_of_other_kinds_are_no_numbers(what, column):
    table = EDGES.assign(**{column: WEIGHTS[what]})
    with warnings.catch_warnings(), pytest.raises(DataError, match=f"The network has {what} in the column '{column}'"):
        warnings.simplefilter("error")
        grn.evaluate(table, EDGES, quiet=True)


@pytest.mark.parametrize("kind", ["Int64", "Float32", "category", "float16", ">f8", "string"])
def test_numbers_of_any_dtype_are_numbers(kind):
    table = EDGES.assign(weight=EDGES["weight"].round().astype(kind))
    assert grn.read_network(table)["weight"].tolist() == [1.0, -2.0, 0.0]


def test_names_of_several_levels_are_refused():
    cells = anndata.AnnData(np.ones((4, 3), np.float32))
    cells.obs.index = pd.MultiIndex.from_product([["a", "b"], ["x", "y"]])
    with pytest.raises(
        DataError, match=r"Cell names have 2 levels \(a MultiIndex\); join them, as adata\.obs_names = "
    ):
        grn.train(cells, quiet=True)


def test_a_label_that_files_would_cut_off_is_refused():
    cells = anndata.AnnData(np.ones((40, 30), np.float32), obs=pd.DataFrame({"type": ["a\0", "b"] * 20}))
    with pytest.raises(DataError, match="has a character that files cannot hold"):
        grn.train(cells, label_key="type", quiet=True)


MATRICES = {
    "complex": lambda weights: weights.astype(complex),
    "object": lambda weights: weights.toarray().astype(object),
    "masked": lambda weights: np.ma.masked_greater(weights.toarray(), 0),
    "true and false": lambda weights: weights.astype(bool),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_a_matrix_of_other_kinds_is_no_network(kind, tiny_run):
    network = grn.load(tiny_run).network
    for key in ("grn", "grn_attention_layer0"):
        network.varp[key] = MATRICES[kind](network.varp[key])
    uses = (
        grn.read_network,
        grn.plots.network_graph,
        grn.plots.attention_layers,
        lambda network: grn.evaluate(network, EDGES, quiet=True),
    )
    for use in uses:
        with warnings.catch_warnings(), pytest.raises(DataError, match=r"in varp\['grn.*'\], where numbers belong"):
            warnings.simplefilter("error")
            use(network)


def test_a_dense_network_is_one(tiny_run):
    run = grn.load(tiny_run)
    network, table = run.network.copy(), run.network.copy()
    network.varp["grn"] = network.varp["grn"].toarray()
    table.varp["grn"] = pd.DataFrame(network.varp["grn"], index=network.var_names, columns=network.var_names)
    expected = grn.read_network(run.network)
    for each in (network, table):
        pd.testing.assert_frame_equal(grn.read_network(each), expected)


def test_layers_are_drawn_under_their_own_numbers_alone(tiny_run):
    network = grn.load(tiny_run).network
    network.varp["grn_attention_layer1"] = network.varp.pop("grn_attention_layer0")
    with pytest.raises(UserError, match=r"no varp\['grn_attention_layer0'\]"):
        grn.plots.attention_layers(network)


def test_axes_that_a_figure_has_lost_are_refused():
    axes = Figure().subplots()
    axes.figure.clf()
    with pytest.raises(DataError, match="ax was removed from its figure"):
        grn.plots.network_graph(EDGES, ax=axes)
    inset = Figure().subplots().inset_axes([0.1, 0.1, 0.5, 0.5]).inset_axes([0, 0, 1, 1])
    assert grn.plots.network_graph(EDGES, ax=inset) is inset


def test_what_an_embedding_holds_is_real():
    cells = anndata.AnnData(np.ones((2, 1), np.float32))
    cells.obsm["X_umap"], cells.obsm["X_regulon"] = np.eye(2) * 1j, pd.DataFrame({"A": [1.0, 2]}, index=cells.obs_names)
    with warnings.catch_warnings(), pytest.raises(DataError, match=r"obsm\['X_umap'\] holds no numbers"):
        warnings.simplefilter("error")
        grn.plots.regulator_activity(cells, "A")


def test_a_perturbation_whose_meaning_is_damaged_is_drawn_without_it():
    genes = pd.DataFrame(
        {"grn_effect": [1.0, -0.5], "grn_sd": [0.1, 0.1], "grn_perturbed": [False, True]}, index=["x", "y"]
    )
    cells = anndata.AnnData(np.ones((2, 2), np.float32), var=genes)
    cells.uns["grn_perturb"] = ["perturbation"]
    assert isinstance(grn.plots.perturbation_volcano(cells), matplotlib.axes.Axes)


def test_a_table_that_a_run_had_is_missed(tiny_run, tmp_path):
    run = grn.load(shutil.copytree(tiny_run, tmp_path / "run"))
    (run.folder / "confusion.csv").unlink()
    with pytest.raises(DataError, match=r"confusion\.csv does not exist any more; restore it"):
        _ = run.confusion
    (run.folder / "confusion.csv").write_text("x\n")
    with pytest.raises(DataError, match=r"confusion\.csv is damaged \(it has no cell types\)"):
        _ = run.confusion


OBS = {
    "a column of obs that holds lists": lambda obs: obs.assign(type=[["a"]] * len(obs)),
    "holds lists or bytes": lambda obs: obs.assign(type=[b"a", b"b"] * (len(obs) // 2)),
    "obs has 2 columns of this name": lambda obs: pd.concat([obs, obs], axis=1),
}


@pytest.mark.parametrize("sentence", OBS)
@pytest.mark.parametrize("option", ["label_key", "group_key", "state_key"])
def test_a_column_has_one_value_for_each_cell(sentence, option):
    cells = anndata.AnnData(
        np.arange(1200, dtype=np.float32).reshape(40, 30) % 7, obs=pd.DataFrame({"type": ["a", "b"] * 20})
    )
    cells.obs = OBS[sentence](cells.obs)
    with pytest.raises(DataError, match=f"{option} is 'type'.*{sentence}"):
        grn.network(cells, quiet=True, **{option: "type"})


def test_a_backed_file_that_was_overwritten_is_damaged(tmp_path):
    anndata.AnnData(np.ones((2, 2), np.float32)).write_h5ad(tmp_path / "cells.h5ad")
    cells = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    cells.file.close()
    (tmp_path / "cells.h5ad").write_bytes(b"no\x00cells")
    with pytest.raises(DataError, match=r"cells\.h5ad cannot be read"):
        grn.train(cells, quiet=True)


def test_a_path_that_no_file_system_holds_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "link")
    with pytest.raises(RunFolderError, match="link is a link that leads nowhere; give the folder of a run"):
        grn.load(tmp_path / "link")


@pytest.mark.parametrize("name", [("a", "b"), b"R1", 1.5, True])
def test_what_is_no_name_is_no_gene(name):
    table = EDGES.assign(source=pd.Series([name] * 3, dtype=object))
    with pytest.raises(DataError, match=f"source is .* of the type {type(name).__name__}; give names as texts"):
        grn.read_network(table)
    if not isinstance(name, (float, bool)):
        with pytest.raises(DataError, match="which is no name; give texts"):
            grn.plots.network_graph(table)
    with pytest.raises(DataError, match="holds lists"):
        grn.plots.network_graph(EDGES.assign(target=[["G1"]] * 3))


def test_decimals_are_numbers():
    table = EDGES.assign(weight=list(map(Decimal, ("1", "-2", "0.5"))))
    pd.testing.assert_frame_equal(grn.read_network(table), EDGES)
    assert isinstance(grn.plots.strongest_regulations(table), matplotlib.axes.Axes)


def test_a_name_that_is_missing_or_twice_is_not_drawn():
    nameless = pd.DataFrame([[1, 0], [0, 1]], index=["a", None], columns=["a", None])
    with pytest.raises(DataError, match="A row or a column of confusion has no name"):
        grn.plots.confusion_matrix(nameless)
    cells = anndata.AnnData(np.ones((2, 1), np.float32))
    cells.obsm["X_umap"] = np.eye(2)
    cells.obsm["X_regulon"] = pd.DataFrame([[1.0, 2], [3, 4]], index=cells.obs_names, columns=["A", "A"])
    with pytest.raises(DataError, match="has the regulator 'A' twice"):
        grn.plots.regulator_activity(cells, "A")
