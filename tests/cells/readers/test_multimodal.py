"""MuData files and SpatialData folders, laid out as their own libraries write them."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pandas as pd
import pytest
import zarr
from anndata import AnnData
from anndata.io import write_elem

from grn.cells.load import load_cells
from grn.cells.readers.registry import counts_in_file, is_data_file, open_source
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError


def write_h5mu(path, mods: dict[str, AnnData], obs: pd.DataFrame | None = None) -> str:
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"] = "MuData"
        for name, adata in mods.items():
            write_elem(file.require_group("mod"), name, adata)
        file["mod"].attrs["mod-order"] = list(mods)
        write_elem(file, "obs", pd.DataFrame(index=["x"]) if obs is None else obs)
        write_elem(file, "var", pd.DataFrame(index=["y"]))
    return str(path)


def opened(path: str) -> AnnData:
    return open_source(DataConfig(path=path))


@pytest.fixture
def proteins(adata) -> AnnData:
    found = adata[:, :3].copy()
    found.var_names = ["CD3", "CD19", "CD14"]
    return found


@pytest.mark.parametrize("name", ["rna", "RNA", "gex"])
def test_the_rna_of_a_mudata_file_is_read_with_what_is_known_of_all_cells(
    adata, proteins, name, tmp_path
):
    mixed = adata.obs_names[::-1]
    obs = pd.DataFrame({"donor": np.arange(len(mixed)).astype(str)}, index=mixed)
    obs[f"{name}:cluster"], obs["prot:depth"] = obs["donor"] + "c", 1.0
    path = write_h5mu(tmp_path / "cells.h5mu", {"prot": proteins, name: adata}, obs)
    found = opened(path)
    pd.testing.assert_frame_equal(found.to_df(), adata.to_df())
    assert found.var_names.tolist() == adata.var_names.tolist()
    assert found.obs["donor"].tolist() == obs["donor"].reindex(adata.obs_names).tolist()
    assert found.obs["cluster"].str.endswith("c").all() and "prot:depth" not in found.obs
    loaded, _ = load_cells(DataConfig(path=path, genes="all"))
    assert any("prot is left out" in note for note in loaded.notes) and is_data_file(path)


def test_of_kinds_that_are_not_named_rna_a_single_one_is_read(adata, proteins, tmp_path):
    one = write_h5mu(tmp_path / "one.h5mu", {"cells": adata})
    assert opened(one).n_vars == adata.n_vars
    two = write_h5mu(tmp_path / "two.h5mu", {"a": adata, "b": proteins})
    with pytest.raises(DataError, match=r"2 kinds of data \(a, b\)"):
        opened(two)


def write_spatial(path, tables: dict[str, AnnData]) -> str:
    root = zarr.open_group(path, mode="w")
    root.attrs["spatialdata_attrs"] = {"version": "0.2"}
    root.create_group("images")
    root.create_group("tables")
    for name, adata in tables.items():
        adata.write_zarr(path / "tables" / name)
    return str(path)


def test_the_table_of_a_spatialdata_folder_is_read(adata, proteins, tmp_path):
    path = write_spatial(tmp_path / "slide.zarr", {"table": adata, "other": proteins})
    found = opened(path)
    assert found.var_names.tolist() == adata.var_names.tolist()
    with counts_in_file(DataConfig(path=path)) as (stored, var):
        assert stored.shape == adata.shape and len(var) == adata.n_vars
    loaded, _ = load_cells(DataConfig(path=path, genes="all"))
    assert len(loaded) == adata.n_obs
    inside = opened(str(tmp_path / "slide.zarr" / "tables" / "other"))
    assert inside.var_names.tolist() == proteins.var_names.tolist(), "by its own path"
    shutil.move(tmp_path / "slide.zarr", tmp_path / "slide")
    assert opened(str(tmp_path / "slide")).n_vars == adata.n_vars, "without an ending"


def test_several_tables_are_named_and_none_is_said(adata, proteins, tmp_path):
    two = write_spatial(tmp_path / "two.zarr", {"a": adata, "b": proteins})
    with pytest.raises(DataError, match=r"2 tables \(a, b\).*tables.a"):
        opened(two)
    with pytest.raises(DataError, match="no table of cells"):
        opened(write_spatial(tmp_path / "none.zarr", {}))
