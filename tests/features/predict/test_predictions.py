"""Predictions written into a copy of the cells, and a model that is exported predicts the same."""

import shutil
import sys
import types
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from scipy import sparse

import grn
from grn.bags import Bags
from grn.cells.load import cells_in_pieces, load_cells
from grn.cells.readers import matrix
from grn.cells.readers.registry import open_source, source_in_file
from grn.cells.simulated.cells import simulate
from grn.cli.main import main
from grn.config.files import load_config
from grn.features.predict import predictions as prediction
from grn.features.predict.api import predict_file
from grn.features.predict.predictions import add_predictions, data_config, pieces_of, predict_cells
from grn.model.saved import TrainedModel, round_as_saved
from grn.runtime import h5ad as disk
from grn.runtime.errors import DataError, RunFolderError, VocabularyMismatch
from grn.runtime.h5ad import write_anndata

ALL = np.ones(16, dtype=bool)
EVEN = np.full(16, 1 / 16)


class Messages(list):
    def __call__(self, line: str) -> None:
        self.append(line)

    @property
    def text(self) -> str:
        return "\n".join(self)


@pytest.fixture
def simulated(tiny_run):
    """The cells that the run was trained on."""
    return open_source(load_config(tiny_run / "config.yaml").data)


@pytest.fixture
def data(simulated, tmp_path):
    simulated.write_h5ad(tmp_path / "cells.h5ad")
    return tmp_path / "cells.h5ad"


def write_predictions(model, data, output, **options):
    """The written file and the messages."""
    messages = Messages()
    predict_file(data, model, output, say=messages, **options)
    return anndata.read_h5ad(output), messages


def saved(model, tmp_path, adata, classes=()):
    """A model folder for the genes of `adata`."""
    TrainedModel(
        model, tuple(adata.var_names), classes, "counts", "log1p", None, None, ALL, EVEN
    ).save(tmp_path / "alone")
    return tmp_path / "alone"


def test_predictions_on_the_training_data_are_the_model_s_own(tiny_run, data, tmp_path):
    """From the training run's own multiplicities, in one dense batch, to the last digits of
    float32.
    """
    before, simulated = data.read_bytes(), anndata.read_h5ad(data)
    found, _ = write_predictions(tiny_run, data, tmp_path / "out.h5ad")
    assert data.read_bytes() == before and (found.X != simulated.X).nnz == 0
    assert found.obs["cell_type"].tolist() == simulated.obs["cell_type"].tolist()
    assert found.uns["truth"].equals(simulated.uns["truth"])
    inside, _ = write_predictions(tiny_run / "model", data, tmp_path / "inside.h5ad")
    np.testing.assert_array_equal(inside.obsm["X_grn"], found.obsm["X_grn"])
    trained = TrainedModel.load(tiny_run)
    cells, _ = load_cells(load_config(tiny_run / "config.yaml").data)
    dense = torch.from_numpy(cells.multiplicity.toarray())
    with torch.no_grad():
        expected = trained.model(Bags(dense, torch.from_numpy(cells.basal)))
    probabilities = expected.logits.softmax(-1).numpy()
    np.testing.assert_allclose(found.obsm["grn_probabilities"], probabilities, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.obsm["X_grn"], expected.cell.numpy(), rtol=1e-4, atol=1e-5)
    named = [trained.classes[best] for best in probabilities.argmax(1)]
    assert found.obs["grn_cell_type"].tolist() == named
    np.testing.assert_allclose(
        found.obs["grn_cell_type_confidence"], probabilities.max(1), rtol=1e-4
    )
    assert probabilities.std(0).min() > 100 * 1e-6, "the cells differ by more than the tolerance"


def test_order_and_number_of_genes_do_not_matter(tiny_run, simulated, data, tmp_path):
    """Genes in another order, with one more that the model does not know."""
    expected, _ = write_predictions(tiny_run, data, tmp_path / "expected.h5ad")
    unknown = anndata.AnnData(
        sparse.csr_matrix(np.full((80, 1), 9.0, np.float32)), obs=simulated.obs
    )
    unknown.var_names = ["unknown"]
    shuffled = anndata.concat([unknown, simulated[:, ::-1]], axis=1)
    shuffled.write_h5ad(tmp_path / "shuffled.h5ad")
    found, messages = write_predictions(tiny_run, tmp_path / "shuffled.h5ad", tmp_path / "out.h5ad")
    np.testing.assert_allclose(found.obsm["X_grn"], expected.obsm["X_grn"], rtol=1e-4, atol=1e-5)
    assert "16 of the model's 16 genes (100 %) are in the data" in messages.text
    counted = found.obs["grn_cell_type"].value_counts()
    assert all(f"{label} {cells} (" in messages.text for label, cells in counted.items() if cells)
    assert "; none unassigned." in messages.text


def test_cells_without_any_gene_are_unassigned(tiny_run, simulated, tmp_path):
    counts = simulated.X.tolil()
    counts[[3, 5]] = 0
    simulated.X = counts.tocsr()
    simulated.write_h5ad(tmp_path / "cells.h5ad")
    found, messages = write_predictions(tiny_run, tmp_path / "cells.h5ad", tmp_path / "out.h5ad")
    assert "2 of 80 cells have none of the model's genes" in messages.text
    np.testing.assert_array_equal(found.obsm["X_grn"][3], found.obsm["X_grn"][5])
    assert (found.obs["grn_cell_type"] == "unassigned").to_numpy().nonzero()[0].tolist() == [3, 5]
    assert (found.obs["grn_cell_type_confidence"].iloc[[3, 5]] == 0).all()
    assert (found.obsm["grn_probabilities"][[3, 5]] == 0).all() and np.isfinite(
        found.obsm["grn_probabilities"]
    ).all()
    both = grn.predict(simulated, tiny_run, error=0.5, map={"type 1": "one"}, quiet=True).obs[
        "grn_cell_type"
    ]
    assert both.iloc[[3, 5]].tolist() == ["unassigned"] * 2


def test_counts_and_gene_names_may_be_elsewhere(tiny_run, simulated, data, tmp_path):
    expected, _ = write_predictions(tiny_run, data, tmp_path / "expected.h5ad")
    simulated.layers["umi"] = simulated.X.copy()
    simulated.X = simulated.X.log1p()
    simulated.var["symbol"] = simulated.var_names
    simulated.var_names = [f"ENSG{number:011d}" for number in range(16)]
    moved = tmp_path / "moved.h5ad"
    simulated.write_h5ad(moved)
    found, messages = write_predictions(
        tiny_run, moved, tmp_path / "out.h5ad", counts="layer:umi", gene_key="symbol"
    )
    np.testing.assert_array_equal(found.obsm["X_grn"], expected.obsm["X_grn"])
    assert "layer 'umi'" in messages.text
    for options, error in (
        ({"gene_key": "symbol"}, DataError),
        ({"counts": "layer:umi"}, VocabularyMismatch),
    ):
        with pytest.raises(error):
            write_predictions(tiny_run, moved, tmp_path / "no.h5ad", **options)
    assert not (tmp_path / "no.h5ad").exists()
    text = tmp_path / "cells.csv"
    anndata.read_h5ad(data).to_df().T.to_csv(text)
    with pytest.raises(DataError, match=r"cells\.csv is a text file"):
        write_predictions(tiny_run, text, tmp_path / "no.h5ad")
    found, _ = write_predictions(
        tiny_run, text, tmp_path / "text.h5ad", orientation="genes_by_cells"
    )
    np.testing.assert_array_equal(found.obsm["X_grn"], expected.obsm["X_grn"])


def test_the_run_s_own_configuration_is_the_default(tiny_run, tmp_path):
    """Where counts and gene names were in training; what the model itself fixes is taken from the
    model.
    """
    shutil.copytree(tiny_run, tmp_path / "run")
    text = (tiny_run / "config.yaml").read_text()
    text = text.replace("counts: X", "counts: raw").replace("gene_key: null", "gene_key: symbol")
    (tmp_path / "run" / "config.yaml").write_text(text.replace("log1p_normalised", "counts"))
    trained = TrainedModel.load(tiny_run)
    for model in (tmp_path / "run", tmp_path / "run" / "model"):
        config = data_config(trained, model, tmp_path / "new.h5ad")
        assert (config.counts, config.gene_key, config.label_key) == ("raw", "symbol", None)
        assert (config.multiplicity, config.path) == (
            "log1p_normalised",
            str(tmp_path / "new.h5ad"),
        )
    config = data_config(
        trained, tmp_path / "run", tmp_path / "new.h5ad", counts="layer:a", gene_key="b"
    )
    assert (config.counts, config.gene_key) == ("layer:a", "b")
    shutil.copytree(tiny_run / "model", tmp_path / "run" / "another")
    assert data_config(trained, tmp_path / "run" / "another", tmp_path / "new.h5ad").counts == "X"


@pytest.mark.parametrize("genes_train", [True, False])
def test_predictions_are_those_of_the_module(make_model, simulated, data, tmp_path, genes_train):
    """Without the genes as an objective, the identity token reads them after the blocks."""
    own = make_model(16, dtype=torch.float32, genes_train=genes_train)
    round_as_saved(own)
    model = saved(own, tmp_path, simulated, ("x", "y", "a/b"))
    found, _ = write_predictions(model, data, tmp_path / "out.h5ad")
    trained = TrainedModel.load(model)
    cells = next(
        cells_in_pieces(simulated, data_config(trained, model, data), trained.vocabulary).pieces()
    )
    with torch.no_grad():
        expected = own(
            Bags(torch.from_numpy(cells.multiplicity.toarray()), torch.from_numpy(cells.basal))
        )
    probabilities = expected.logits.softmax(-1)
    np.testing.assert_allclose(found.obsm["grn_probabilities"], probabilities, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found.obsm["X_grn"], expected.cell, rtol=1e-3, atol=1e-4)
    assert list(found.uns["grn"]["classes"]) == ["x", "y", "a/b"]


@pytest.mark.parametrize("genes_train", [True, False])
def test_explaining_hides_a_gene_as_if_it_were_not_there(
    make_model, simulated, data, tmp_path, genes_train
):
    """A gene with no count and at its mean: hiding it changes nothing where the token reads the
    cells themselves.
    """
    own = make_model(16, dtype=torch.float32, genes_train=genes_train)
    own.identity.mean[3] = 0
    model = saved(own, tmp_path, simulated, ("x", "y", "a/b"))
    simulated.X = simulated.X @ sparse.diags_array(np.arange(16) != 3, dtype=np.float32).tocsr()
    found = grn.explain(simulated, model, quiet=True).set_index("gene")["effect"]
    gone = found.loc[[simulated.var_names[3]]].abs().max()
    assert (gone < 1e-4) == genes_train and found.abs().max() > 0.1


def test_no_file_is_overwritten(tiny_run, data, tmp_path):
    (tmp_path / "mine.h5ad").write_text("mine")
    for output in (data, tmp_path / "mine.h5ad"):
        before = output.read_bytes()
        assert main(["predict", str(data), str(tiny_run), "--output", str(output)]) == 2
        assert output.read_bytes() == before
    assert main(["predict", str(data), str(tiny_run), "--output", str(tmp_path / "out.csv")]) == 2


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
    tiny_run, simulated, tmp_path, monkeypatch, form, counts
):
    """Every array of the file that is written, to the last bit."""
    in_pieces(monkeypatch)
    dense = simulated.X.toarray()
    dense[:, 0] = 1  # by which counts are recovered
    umi, log = form(dense), form(np.log1p(dense))
    simulated.X = {"X": umi, "recover": log}.get(counts, form(0.5 * dense))
    if counts == "raw":
        simulated.raw = anndata.AnnData(umi, obs=simulated.obs, var=simulated.var)
    simulated.layers["umi"], simulated.obs["text"] = umi, ["a", "b"] * 40
    simulated.obsp["near"], simulated.obsm["X_pca"] = (
        sparse.identity(80, format="csr"),
        np.ones((80, 3)),
    )
    simulated.obsm["table"], simulated.uns["kept"] = (
        pd.DataFrame({"x": range(80)}, simulated.obs_names),
        {"a": [1]},
    )
    cells = tmp_path / "cells.h5ad"
    simulated.write_h5ad(cells)
    found, messages = write_predictions(tiny_run, cells, tmp_path / "out.h5ad", counts=counts)
    assert found.isbacked is False and messages[-1].startswith("80 cells")

    trained = TrainedModel.load(tiny_run)
    config = data_config(trained, tiny_run, cells, counts=counts)
    expected = open_source(config)
    (whole,) = pieces_of(expected, trained, config, None).pieces()
    none = np.zeros(len(whole), dtype=bool)
    found_whole = predict_cells(trained, whole.multiplicity, whole.basal)
    add_predictions(expected, found_whole, trained, "grn", classes=trained.classes, unassigned=none)
    write_anndata(tmp_path / "expected.h5ad", expected)
    with h5py.File(tmp_path / "expected.h5ad") as one, h5py.File(tmp_path / "out.h5ad") as other:
        names, others = [], []
        one.visit(names.append)
        other.visit(others.append)
        assert set(names) == set(others)
        for name in names:
            assert dict(one[name].attrs).keys() == dict(other[name].attrs).keys(), name
            if isinstance(one[name], h5py.Dataset):
                np.testing.assert_array_equal(one[name][()], other[name][()], err_msg=name)
                assert one[name].dtype == other[name].dtype, name


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_matrices_stay_in_the_file_and_a_piece_of_them_is_read_at_a_time(
    tiny_run, simulated, tmp_path, monkeypatch, form
):
    in_pieces(monkeypatch)
    simulated.X = form(simulated.X.toarray())
    simulated.layers["umi"], simulated.obsm["X_pca"], simulated.raw = (
        simulated.X,
        np.ones((80, 3)),
        simulated.copy(),
    )
    simulated.write_h5ad(tmp_path / "cells.h5ad")
    config = data_config(TrainedModel.load(tiny_run), tiny_run, tmp_path / "cells.h5ad")
    with source_in_file(config) as adata:
        for values in (adata.X, adata.layers["umi"], adata.raw.X, adata.obsm["X_pca"]):
            assert isinstance(values, h5py.Dataset) or hasattr(values, "group")
        sizes = [piece.shape[0] for piece in matrix.csr_pieces(adata.X, "X", 16)]
        assert sizes == [16] * 5
    read = []
    clean = matrix._clean
    monkeypatch.setattr(matrix, "_clean", lambda block: read.append(block.shape[0]) or clean(block))
    write_predictions(tiny_run, tmp_path / "cells.h5ad", tmp_path / "out.h5ad")
    assert sum(read) == 160 and max(read) < 80, "once for the check, once for the predictions"


@pytest.mark.parametrize(
    ("values", "wrong"),
    [(values, wrong) for values in ("counts", "expression") for wrong in (np.nan, -2.0, 1e13, None)]
    + [("counts", 0.5)],
)
def test_a_bad_value_in_the_last_piece_is_refused_as_in_memory(
    tiny_run, simulated, tmp_path, monkeypatch, values, wrong
):
    """With the same sentence, and nothing left behind. None: nothing but zeros."""
    in_pieces(monkeypatch)
    counts = simulated.X.tolil()
    if wrong is None:
        counts[:] = 0
    else:
        counts[78, 3], counts[2, 1] = wrong, 0.25 if wrong == -2.0 and values == "counts" else 1.0
    simulated.X = counts.tocsr()
    simulated.layers["other"] = simulated.X * 1.5
    simulated.write_h5ad(tmp_path / "cells.h5ad")
    trained = TrainedModel.load(tiny_run)
    own = data_config(trained, tiny_run, tmp_path / "cells.h5ad").model_copy(
        update={"values": values}
    )
    monkeypatch.setattr(prediction, "data_config", lambda *_, **__: own)
    with pytest.raises(DataError) as expected:
        next(cells_in_pieces(open_source(own), own, trained.vocabulary).pieces())
    with pytest.raises(DataError) as found:
        write_predictions(tiny_run, tmp_path / "cells.h5ad", tmp_path / "out.h5ad")
    assert str(found.value) == str(expected.value)
    assert [path.name for path in tmp_path.iterdir()] == ["cells.h5ad"]


def test_a_model_on_the_hub_is_loaded_by_its_address(tiny_run, monkeypatch):
    asked = []

    def snapshot_download(name, revision):
        asked.append((name, revision))
        if name == "no/such":
            raise OSError("404\nnot found")
        return str(tiny_run / "model")

    stub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", stub)
    assert grn.load("hf://owner/name").cell_types == grn.load(tiny_run).cell_types
    # as the command line has it
    assert grn.load(Path("hf://owner/name@v2")).cell_types
    assert asked == [("owner/name", None), ("owner/name", "v2")]
    with pytest.raises(RunFolderError, match="404"):
        grn.load("hf://no/such")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(RunFolderError, match="pip install huggingface_hub"):
        grn.load("hf://owner/name")


def test_the_exported_folder_loads_and_predicts_as_the_run_and_has_a_card(tiny_run, tmp_path):
    folder = tmp_path / "blood"
    command = ["export", str(tiny_run), "--format", "huggingface", "--output", str(folder)]
    assert main(command) == 0
    run = grn.load(tiny_run)
    adata = simulate(run.config.data.simulated)
    own, exported = (
        grn.predict(adata, each, copy=True, quiet=True) for each in (run, grn.load(folder))
    )
    np.testing.assert_array_equal(own.obsm["grn_probabilities"], exported.obsm["grn_probabilities"])
    head, text = (folder / "README.md").read_text().split("---\n", 2)[1:]
    assert yaml.safe_load(head)["library_name"] == "grn"
    assert f"{run.metrics['accuracy']:.3f}" in text and own.uns["grn"]["model_hash"] in text
    assert main(command) == 2, "nothing is overwritten"
    assert main([*command[:-1], str(tmp_path / "b"), "--top-k", "3"]) == 2
    assert not (tmp_path / "b").exists()


def repeated(adata, gene: str, times: int) -> anndata.AnnData:
    """The cells with a further column for a gene, which has half of its counts."""
    part = adata[:, [gene]].copy()
    part.X = (part.X / 2).astype(int).astype(np.float32)
    rest = adata.copy()
    column = rest.var_names.get_loc(gene)
    values = rest.X.tolil()
    values[:, column] = values[:, column] - part.X
    rest.X = values.tocsr()
    return anndata.concat([rest, part], axis=1, merge="first")


def test_genes_that_occur_twice_are_added_and_others_do_not_matter(
    tiny_run, simulated, data, tmp_path
):
    """Each human output of Cell Ranger has some symbols twice."""
    expected, _ = write_predictions(tiny_run, data, tmp_path / "expected.h5ad")
    other = anndata.AnnData(sparse.csr_matrix(np.full((80, 2), 9.0, np.float32)), obs=simulated.obs)
    other.var_names = ["TBCE", "TBCE"]
    anndata.concat([simulated, other], axis=1, merge="first").write_h5ad(tmp_path / "other.h5ad")
    found, messages = write_predictions(tiny_run, tmp_path / "other.h5ad", tmp_path / "out.h5ad")
    np.testing.assert_array_equal(found.obsm["X_grn"], expected.obsm["X_grn"])
    assert "several columns" not in messages.text
    repeated(simulated, "G1", 2).write_h5ad(tmp_path / "twice.h5ad")
    found, messages = write_predictions(
        tiny_run, tmp_path / "twice.h5ad", tmp_path / "twice_out.h5ad"
    )
    np.testing.assert_allclose(found.obsm["X_grn"], expected.obsm["X_grn"], rtol=1e-5, atol=1e-6)
    assert (
        "Genes of the model with several columns in the data (1: 'G1'): their counts are added."
        in messages.text
    )


def seurat_disk(path, adata) -> None:
    """As SeuratDisk writes raw/var: rows are numbered, and their names are a column `_index`."""
    adata.raw = adata.copy()
    adata.write_h5ad(path)
    with h5py.File(path, "a") as file:
        var = file["raw/var"]
        names = var[var.attrs["_index"]][:]
        del var[var.attrs["_index"]]
        var.attrs["_index"], var.attrs["column-order"] = "index", ["_index"]
        for name, values in (
            ("index", [str(place) for place in range(len(names))]),
            ("_index", names),
        ):
            stored = var.create_dataset(
                name, data=np.array(values, object), dtype=h5py.string_dtype()
            )
            stored.attrs["encoding-type"], stored.attrs["encoding-version"] = (
                "string-array",
                "0.2.0",
            )


def test_a_file_of_seurat_disk_is_read_and_written(tiny_run, simulated, data, tmp_path):
    expected, _ = write_predictions(tiny_run, data, tmp_path / "expected.h5ad")
    seurat_disk(tmp_path / "seurat.h5ad", simulated)
    for counts in ("X", "raw"):
        found, _ = write_predictions(
            tiny_run, tmp_path / "seurat.h5ad", tmp_path / f"{counts}.h5ad", counts=counts
        )
        np.testing.assert_array_equal(found.obsm["X_grn"], expected.obsm["X_grn"])
        assert (
            list(found.raw.var_names) == list(simulated.var_names) and "_index" not in found.raw.var
        )


def test_a_column_with_a_slash_in_its_name_stays(tiny_run, simulated, tmp_path):
    """anndata 0.13 does not write it by itself."""
    simulated.obs["a/b"] = np.arange(80)
    write_anndata(tmp_path / "slash.h5ad", simulated)
    settings = {"disallow_forward_slash_in_h5ad": True}
    known = {name: value for name, value in settings.items() if hasattr(anndata.settings, name)}
    with anndata.settings.override(**known):
        found, _ = write_predictions(tiny_run, tmp_path / "slash.h5ad", tmp_path / "out.h5ad")
    assert found.obs["a/b"].tolist() == list(range(80))
