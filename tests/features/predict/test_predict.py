"""`grn.predict` on cells in memory, as scanpy's functions work, with models of every form."""

from __future__ import annotations

import shutil
import sys
import types
import warnings
from pathlib import Path

import anndata
import numpy as np
import pytest
import scanpy
import yaml

import grn
from grn.config.files import load_config
from grn.model.saved import TrainedModel
from grn.runtime.errors import ConfigError, DataError, RunFolderError, VocabularyMismatch

WRITTEN = {"grn_cell_type", "grn_cell_type_confidence", "X_grn", "grn_probabilities", "grn"}


def added(adata) -> set[str]:
    return {*adata.obs, *adata.obsm, *adata.uns} - {"cell_type", "truth"}


def test_the_pretrained_model_labels_blood_and_its_configuration_makes_it_again():
    """Of its size and by the fields of its configuration; its own training cells, and not all of
    them rightly.
    """
    cells = scanpy.datasets.pbmc68k_reduced()
    grn.predict(cells, model="blood", counts="recover")
    right = cells.obs["grn_cell_type"].astype(str) == cells.obs["bulk_labels"].astype(str)
    assert 0.8 < right.mean() < 1
    folder = Path(grn.__file__).parent / "pretrained" / "blood"
    assert TrainedModel.load(folder).model.config == load_config("blood.yaml").model


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("form", ["cells", "view", "backed", "part of backed"])
def test_cells_of_every_form_are_written_into_or_copied(form, copy, adata, run, tmp_path):
    """In memory alone: a file stays as it is."""
    adata.write_h5ad(tmp_path / "cells.h5ad")
    before = (tmp_path / "cells.h5ad").read_bytes()
    whole = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r") if "backed" in form else adata
    rows = slice(10, 30) if form in ("view", "part of backed") else slice(None)
    given = whole if rows == slice(None) else whole[rows]
    expected = grn.predict(adata, run, copy=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = grn.predict(given, run, copy=copy)
    assert added(found) == WRITTEN and (found is given) != copy
    assert added(given) == (set() if copy else WRITTEN)
    assert given is whole or not added(whole), "of a part, the rest stays as it is"
    for name in ("X_grn", "grn_probabilities"):
        np.testing.assert_allclose(
            found.obsm[name], expected.obsm[name][rows], rtol=1e-5, atol=1e-6
        )
    np.testing.assert_array_equal(found.X[:].toarray(), adata.X[rows].toarray())
    assert (tmp_path / "cells.h5ad").read_bytes() == before
    if "backed" in form:
        assert whole.isbacked
        whole.file.close()


def test_another_key_may_be_chosen(adata, run):
    found = grn.predict(adata, run, key_added="mine", copy=True)
    assert set(found.obsm) == {"X_mine", "mine_probabilities"}


def test_a_run_is_an_object_a_folder_or_a_model(adata, run, tmp_path):
    expected = grn.predict(adata, run, copy=True)
    alone = shutil.copytree(run.folder / "model", tmp_path / "alone")
    for model in (str(run.folder), run.folder / "model", alone, grn.load(alone)):
        found = grn.predict(adata, model, copy=True)
        np.testing.assert_array_equal(found.obsm["X_grn"], expected.obsm["X_grn"])


@pytest.mark.parametrize(
    ("change", "options", "error"),
    [
        (lambda adata: setattr(adata, "X", adata.X.log1p()), {}, DataError),
        (lambda adata: setattr(adata, "var_names", [*"abcdefghijklmnop"]), {}, VocabularyMismatch),
        (lambda adata: None, {"counts": "layer:a"}, DataError),
        (lambda adata: None, {"run": None}, ConfigError),
        (lambda adata: None, {"run": None, "model": "brain"}, DataError),
        (lambda adata: None, {"model": "blood"}, ConfigError),
    ],
)
def test_what_cannot_be_used_is_refused_and_nothing_is_written(change, options, error, adata, run):
    change(adata)
    with pytest.raises(error):
        grn.predict(adata, **{"run": run, "quiet": True, **options})
    assert not added(adata)


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
    assert grn.load(Path("hf://owner/name@v2")).cell_types  # a path, as the command line has it
    assert asked == [("owner/name", None), ("owner/name", "v2")]
    with pytest.raises(RunFolderError, match="404"):
        grn.load("hf://no/such")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(RunFolderError, match="pip install huggingface_hub"):
        grn.load("hf://owner/name")


def test_a_model_that_is_exported_predicts_as_its_run_and_has_a_card(adata, run, command):
    call = "export", run.folder, "--format", "huggingface", "--output"
    assert command(*call, "blood")[0] == 0
    own, exported = (grn.predict(adata, each, copy=True) for each in (run, grn.load("blood")))
    np.testing.assert_array_equal(own.obsm["grn_probabilities"], exported.obsm["grn_probabilities"])
    head, text = Path("blood/README.md").read_text().split("---\n", 2)[1:]
    assert yaml.safe_load(head)["library_name"] == "grn"
    assert f"{run.metrics['accuracy']:.3f}" in text and own.uns["grn"]["model_hash"] in text
    assert command(*call, "blood")[0] == 2, "nothing is overwritten"
    assert command(*call, "other", "--top-k", 3)[0] == 2 and not Path("other").exists()
