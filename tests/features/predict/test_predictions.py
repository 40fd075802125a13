"""Predictions for cells in a file, which is read in pieces, written into a copy of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from anndata.tests.helpers import assert_equal
from scipy import sparse

import grn
from grn.bags import Bags
from grn.cells.load import load_cells
from grn.cells.readers import matrix
from grn.config.files import load_config
from grn.features.predict import predictions as prediction
from grn.features.predict.api import predict_file
from grn.features.predict.predictions import data_config, pieces_of
from grn.model.saved import TrainedModel
from grn.runtime import h5ad as disk
from grn.runtime.errors import DataError, VocabularyMismatch
from grn.runtime.h5ad import write_anndata

EVERY = np.ones(16, dtype=bool)


@pytest.fixture
def predict(tiny_run, tmp_path):
    """Predict of cells or of their file: the file that is written, and what was said."""

    def call(cells, model=tiny_run, **options) -> tuple[anndata.AnnData, str]:
        path, output = tmp_path / "cells.h5ad", tmp_path / "out.h5ad"
        if isinstance(cells, anndata.AnnData):
            cells.write_h5ad(path)
        lines: list[str] = []
        given = path if isinstance(cells, anndata.AnnData) else cells
        predict_file(given, model, output, say=lines.append, **options)
        found = anndata.read_h5ad(output)
        output.unlink()
        return found, "\n".join(lines)

    return call


@pytest.fixture
def expected(adata, run):
    """The representation of the run's cells."""
    return grn.predict(adata, run, copy=True).obsm["X_grn"]


@pytest.fixture
def random_model(make_model, adata, tmp_path):
    """The folder of a model for the genes of the run, and the model."""

    def make(genes_train: bool, mean: float):
        own = make_model(16, dtype=torch.float32, genes_train=genes_train)
        own.identity.mean[3] = mean
        about = "counts", "log1p", None, None, EVERY, EVERY / 16
        TrainedModel(own, tuple(adata.var_names), ("x", "y", "a/b"), *about).save(
            tmp_path / "random"
        )
        return tmp_path / "random"

    return make


def test_the_cells_of_a_run_are_predicted_as_it_read_them(predict, adata, tiny_run):
    found, _ = predict(adata)
    assert (found.X != adata.X).nnz == 0 and found.uns["truth"].equals(adata.uns["truth"])
    assert found.obs["cell_type"].tolist() == adata.obs["cell_type"].tolist()
    trained = TrainedModel.load(tiny_run)
    cells, _ = load_cells(load_config(tiny_run / "config.yaml").data)
    check_predictions(found, trained, cells)


@pytest.mark.parametrize("genes_train", [True, False])
def test_predictions_are_those_of_the_module(predict, adata, random_model, genes_train):
    """Without the genes as an objective, the identity token reads them after the blocks."""
    model = random_model(genes_train, mean=0.5)
    found, _ = predict(adata, model)
    trained = TrainedModel.load(model)
    (cells,) = pieces_of(adata, trained, data_config(trained, model, Path("x")), None).pieces()
    check_predictions(found, trained, cells)


def check_predictions(found, trained, cells) -> None:
    bags = Bags(torch.from_numpy(cells.multiplicity.toarray()), torch.from_numpy(cells.basal))
    with torch.no_grad():
        expected = trained.model(bags)
    probabilities = expected.logits.softmax(-1).numpy()
    assert probabilities.std(0).min() > 1e-4, "cells differ by more than the tolerance"
    np.testing.assert_allclose(found.obsm["grn_probabilities"], probabilities, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.obsm["X_grn"], expected.cell, rtol=1e-3, atol=1e-4)
    named = [trained.classes[best] for best in probabilities.argmax(1)]
    assert found.obs["grn_cell_type"].tolist() == named
    confidence = found.obs["grn_cell_type_confidence"]
    np.testing.assert_allclose(confidence, probabilities.max(1), rtol=1e-3)


@pytest.mark.parametrize("genes_train", [True, False])
def test_explaining_hides_a_gene_as_if_it_were_not_there(adata, random_model, genes_train):
    """A gene with no count and at its mean: hiding it changes nothing where the token reads the
    cells themselves.
    """
    adata.X = adata.X @ sparse.diags_array(np.arange(16) != 3, dtype=np.float32).tocsr()
    found = grn.explain(adata, random_model(genes_train, mean=0))
    effect = found.set_index("gene")["effect"].abs()
    assert (effect[adata.var_names[3]].max() < 1e-4) == genes_train and effect.max() > 0.1


def test_genes_in_another_order_twice_or_unknown_do_not_matter(predict, adata, expected):
    """Each human output of Cell Ranger has some symbols twice: their counts are added."""
    half = adata[:, ["G1"]].copy()
    half.X = sparse.csr_matrix(np.floor(half.X.toarray() / 2))
    unknown = anndata.AnnData(np.full((80, 2), 9.0, np.float32), obs=adata.obs)
    unknown.var_names = ["TBCE", "TBCE"]
    rest = adata[:, ::-1].copy()
    rest.X = sparse.csr_matrix(rest.X.toarray() - (rest.var_names == "G1") * half.X.toarray())
    found, said = predict(anndata.concat([unknown, rest, half], axis=1, merge="first"))
    np.testing.assert_allclose(found.obsm["X_grn"], expected, rtol=1e-4, atol=1e-5)
    assert "16 of the model's 16 genes (100 %) are in the data" in said
    assert "(1: 'G1'): their counts are added" in said and "none unassigned" in said


def test_cells_without_any_gene_are_unassigned(predict, adata, run):
    counts = adata.X.tolil()
    counts[[3, 5]] = 0
    adata.X = counts.tocsr()
    found, said = predict(adata)
    assert "2 of 80 cells have none of the model's genes" in said
    assert np.flatnonzero(found.obs["grn_cell_type"] == "unassigned").tolist() == [3, 5]
    assert (found.obs["grn_cell_type_confidence"].iloc[[3, 5]] == 0).all()
    assert (found.obsm["grn_probabilities"][[3, 5]] == 0).all()
    both = grn.predict(adata, run, error=0.5, map={"type 1": "one"}).obs
    assert both["grn_cell_type"].iloc[[3, 5]].tolist() == ["unassigned"] * 2


def test_counts_and_gene_names_may_be_elsewhere(predict, adata, expected):
    adata.layers["umi"], adata.X = adata.X.copy(), adata.X.log1p()
    adata.var["symbol"] = adata.var_names
    adata.var_names = [f"ENSG{number:011d}" for number in range(16)]
    found, said = predict(adata, counts="layer:umi", gene_key="symbol")
    np.testing.assert_array_equal(found.obsm["X_grn"], expected)
    assert "layer 'umi'" in said
    with pytest.raises(DataError):
        predict(adata, gene_key="symbol")
    with pytest.raises(VocabularyMismatch):
        predict(adata, counts="layer:umi")


def test_of_a_text_file_the_orientation_is_asked(predict, adata, expected, tmp_path):
    adata.to_df().T.to_csv(tmp_path / "cells.csv")
    found, _ = predict(tmp_path / "cells.csv", orientation="genes_by_cells")
    np.testing.assert_array_equal(found.obsm["X_grn"], expected)
    with pytest.raises(DataError, match=r"cells\.csv is a text file"):
        predict(tmp_path / "cells.csv")


def test_counts_are_where_they_were_in_training_unless_the_user_says_so(
    predict, adata, expected, tiny_run, tmp_path
):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    text = (run / "config.yaml").read_text().replace("counts: X", "counts: layer:umi")
    (run / "config.yaml").write_text(text)
    adata.layers["umi"], adata.X = adata.X.copy(), adata.X.log1p()
    for model in (run, run / "model"):
        np.testing.assert_array_equal(predict(adata, model)[0].obsm["X_grn"], expected)
    adata.X = adata.layers.pop("umi")
    alone = shutil.copytree(run / "model", tmp_path / "alone")
    for model, options in ((run, {"counts": "X"}), (alone, {})):
        found, _ = predict(adata, model, **options)
        np.testing.assert_array_equal(found.obsm["X_grn"], expected)


@pytest.fixture
def in_pieces(monkeypatch):
    """Pieces of 64 of the 80 cells, and few values at a time from the disk."""
    monkeypatch.setattr(prediction, "READ", 64)
    monkeypatch.setattr(matrix, "STORED", 600)
    monkeypatch.setattr(disk, "COPIED", 1000)


@pytest.mark.parametrize(
    ("form", "counts"),
    [
        (np.asarray, "X"),
        (sparse.csr_matrix, "X"),
        (sparse.csc_matrix, "layer:umi"),
        (sparse.csr_matrix, "raw"),
        (np.asarray, "recover"),
    ],
)
def test_a_file_read_in_pieces_gives_what_the_cells_in_memory_give(
    predict, adata, run, tmp_path, in_pieces, form, counts
):
    """All that is written, to the last bit."""
    dense = adata.X.toarray()
    dense[:, 0] = 1  # by which counts are recovered
    umi, log = form(dense), form(np.log1p(dense))
    adata.X = {"X": umi, "recover": log}.get(counts, form(0.5 * dense))
    if counts == "raw":
        adata.raw = anndata.AnnData(umi, obs=adata.obs, var=adata.var)
    adata.layers["umi"], adata.obs["text"] = umi, ["a", "b"] * 40
    adata.obsp["near"] = sparse.identity(80, format="csr")
    adata.obsm["table"] = pd.DataFrame({"x": range(80)}, adata.obs_names)
    adata.uns["kept"] = {"a": [1]}
    found, _ = predict(adata, counts=counts)
    expected = grn.predict(adata, run, counts=counts, copy=True)
    write_anndata(tmp_path / "expected.h5ad", expected)
    assert_equal(found, anndata.read_h5ad(tmp_path / "expected.h5ad"), exact=True)


def test_a_piece_of_the_matrix_is_read_at_a_time(predict, adata, in_pieces, monkeypatch):
    """Once for the check, once for the predictions."""
    read, clean = [], matrix._clean
    monkeypatch.setattr(matrix, "_clean", lambda block: read.append(block.shape[0]) or clean(block))
    predict(adata)
    assert sum(read) == 160 and max(read) < 80


@pytest.mark.parametrize("wrong", [np.nan, -2.0, 0.5, 1e13])
def test_a_bad_value_in_the_last_piece_is_refused_as_in_memory(
    predict, adata, run, tmp_path, in_pieces, wrong
):
    """With the same sentence, and nothing left behind."""
    counts = adata.X.tolil()
    counts[78, 3] = wrong
    adata.X = counts.tocsr()
    with pytest.raises(DataError) as expected:
        grn.predict(adata, run, copy=True)
    with pytest.raises(DataError) as found:
        predict(adata)
    assert str(found.value).replace(str(tmp_path / "cells.h5ad"), "The AnnData") == str(
        expected.value
    )
    assert [path.name for path in tmp_path.iterdir()] == ["cells.h5ad"]


def test_no_file_is_overwritten(adata, tiny_run, command):
    adata.write_h5ad("cells.h5ad")
    Path("mine.h5ad").write_text("mine")
    before = Path("cells.h5ad").read_bytes()
    for output in ("cells.h5ad", "mine.h5ad", "out.csv"):
        assert command("predict", "cells.h5ad", tiny_run, "--output", output)[0] == 2
    assert Path("mine.h5ad").read_text() == "mine" and Path("cells.h5ad").read_bytes() == before


@pytest.mark.parametrize("counts", ["X", "raw"])
def test_a_file_of_seurat_disk_is_read_and_written(predict, adata, expected, tmp_path, counts):
    """SeuratDisk writes raw/var so: rows are numbered, and their names are a column `_index`."""
    adata.raw = adata.copy()
    adata.write_h5ad(tmp_path / "seurat.h5ad")
    with h5py.File(tmp_path / "seurat.h5ad", "a") as file:
        var = file["raw/var"]
        names = adata.var_names
        del var[var.attrs["_index"]]
        var.attrs["_index"], var.attrs["column-order"] = "index", ["_index"]
        for name, values in {"index": range(16), "_index": names}.items():
            texts = np.array([*values], object).astype(str).astype(object)
            stored = var.create_dataset(name, data=texts, dtype=h5py.string_dtype())
            stored.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
    found, _ = predict(tmp_path / "seurat.h5ad", counts=counts)
    np.testing.assert_array_equal(found.obsm["X_grn"], expected)
    assert list(found.raw.var_names) == list(adata.var_names) and "_index" not in found.raw.var


def test_a_column_with_a_slash_in_its_name_stays(predict, adata, tmp_path):
    """anndata 0.13 does not write it by itself."""
    adata.obs["a/b"] = np.arange(80)
    write_anndata(tmp_path / "slash.h5ad", adata)
    name = "disallow_forward_slash_in_h5ad"
    known = {name: True} if hasattr(anndata.settings, name) else {}
    with anndata.settings.override(**known):
        found, _ = predict(tmp_path / "slash.h5ad")
    assert found.obs["a/b"].tolist() == list(range(80))
