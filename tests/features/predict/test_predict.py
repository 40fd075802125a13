"""`grn.predict` on cells in memory, as scanpy's functions work."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
import scanpy

import grn
from grn.config.files import load_config
from grn.features.predict.api import predict_file
from grn.model.saved import TrainedModel
from grn.runtime.errors import ConfigError, DataError, RunFolderError, VocabularyMismatch

WRITTEN = {
    "obs": {"grn_cell_type", "grn_cell_type_confidence"},
    "obsm": {"X_grn", "grn_probabilities"},
    "uns": {"grn"},
}


def added(adata) -> dict[str, set[str]]:
    return {
        "obs": set(adata.obs) - {"cell_type"},
        "obsm": set(adata.obsm),
        "uns": set(adata.uns) - {"truth"},
    }


def test_the_pretrained_model_labels_blood_and_its_configuration_makes_it_again():
    """Of its size and by the fields of its configuration; its own training cells, and not all of
    them rightly.
    """
    cells = scanpy.datasets.pbmc68k_reduced()
    grn.predict(cells, model="blood", counts="recover", quiet=True)
    right = cells.obs["grn_cell_type"].astype(str) == cells.obs["bulk_labels"].astype(str)
    assert 0.8 < right.mean() < 1
    folder = Path(grn.__file__).parent / "pretrained" / "blood"
    assert TrainedModel.load(folder).model.config == load_config("blood.yaml").model


@pytest.mark.parametrize(("given", "error"), [({}, ConfigError), ({"model": "brain"}, DataError)])
def test_cells_are_labelled_by_a_run_or_by_a_pretrained_model(adata, run, given, error):
    with pytest.raises(error) as caught:
        grn.predict(adata, **given, quiet=True)
    assert caught.value.field == "model"
    with pytest.raises(ConfigError):
        grn.predict(adata, run, model="blood", quiet=True)


def test_cells_in_memory_are_predicted_as_those_of_a_file(adata, run, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    adata.write_h5ad(tmp_path / "cells.h5ad")
    predict_file(tmp_path / "cells.h5ad", run.folder, tmp_path / "out.h5ad", say=lambda line: None)
    expected = anndata.read_h5ad(tmp_path / "out.h5ad")
    assert grn.predict(adata, run, quiet=True) is adata
    for found in (adata, grn.predict(tmp_path / "cells.h5ad", run.folder, quiet=True)):
        assert added(found) == WRITTEN
        for name in WRITTEN["obsm"]:
            np.testing.assert_array_equal(found.obsm[name], expected.obsm[name])
        pd.testing.assert_frame_equal(found.obs, expected.obs)
    assert not list((tmp_path / "here").iterdir()), "nothing is written"


def test_a_copy_leaves_the_cells_alone(adata, run):
    before = adata.copy()
    copy = grn.predict(adata, run, key_added="mine", copy=True, quiet=True)
    assert copy is not adata and added(adata) == added(before)
    assert set(copy.obsm) == {"X_mine", "mine_probabilities"}
    assert (adata.X != before.X).nnz == 0 and (copy.X != before.X).nnz == 0


def test_a_view_is_written_into_too(adata, run):
    whole = grn.predict(adata, run, copy=True, quiet=True)
    view = adata[10:30]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = grn.predict(view, run, quiet=True)
    assert found is view and added(found) == WRITTEN
    np.testing.assert_allclose(
        found.obsm["X_grn"], whole.obsm["X_grn"][10:30], rtol=1e-5, atol=1e-6
    )
    assert added(adata) == {"obs": set(), "obsm": set(), "uns": set()}


def test_a_run_is_an_object_a_folder_or_a_model(adata, run, tmp_path):
    expected = grn.predict(adata, run, copy=True, quiet=True)
    shutil.copytree(run.folder / "model", tmp_path / "alone")
    for model in (
        run.folder,
        str(run.folder),
        run.folder / "model",
        tmp_path / "alone",
        grn.load(tmp_path / "alone"),
    ):
        found = grn.predict(adata, model, copy=True, quiet=True)
        np.testing.assert_array_equal(found.obsm["X_grn"], expected.obsm["X_grn"])


WRONG = {
    "log values": (lambda adata: setattr(adata, "X", adata.X.log1p()), {}, DataError),
    "other genes": (
        lambda adata: setattr(adata, "var_names", [f"g{number}" for number in range(16)]),
        {},
        VocabularyMismatch,
    ),
    "no such layer": (lambda adata: None, {"counts": "layer:a"}, DataError),
    "no such column": (lambda adata: None, {"gene_key": "symbol"}, DataError),
    "a run that is not there": (lambda adata: None, {"run": "nowhere"}, RunFolderError),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_used_is_one_sentence_and_nothing_is_written(case, adata, run):
    change, keywords, error = WRONG[case]
    change(adata)
    before = added(adata)
    with pytest.raises(error) as caught:
        grn.predict(adata, **{"run": run, "quiet": True, **keywords})
    assert "\n" not in str(caught.value)
    assert added(adata) == before


def test_a_backed_anndata_is_written_into_in_memory(adata, run, tmp_path):
    adata.write_h5ad(tmp_path / "cells.h5ad")
    before = (tmp_path / "cells.h5ad").read_bytes()
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    copy = grn.predict(backed, run, copy=True, quiet=True)
    assert not copy.isbacked and added(copy) == WRITTEN and "X_grn" not in backed.obsm
    assert "X_grn" in grn.predict(backed, run, quiet=True).obsm and backed.isbacked
    backed.file.close()
    assert (tmp_path / "cells.h5ad").read_bytes() == before


def test_a_part_of_a_backed_anndata_is_written_into_in_memory(adata, run, tmp_path):
    whole = grn.predict(adata, run, copy=True, quiet=True)
    adata.write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    part = backed[10:30]
    assert (
        grn.predict(part, run, quiet=True) is part and not part.isbacked and added(part) == WRITTEN
    )
    np.testing.assert_allclose(part.obsm["X_grn"], whole.obsm["X_grn"][10:30], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(part.X.toarray(), adata.X[10:30].toarray())
    assert backed.isbacked and "X_grn" not in backed.obsm
    backed.file.close()
