"""`grn init`: a configuration that trains as it is, with what was found in the cells."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData

from grn.cli.train import loaded_config
from grn.config.files import load_config


@pytest.fixture
def cells(tmp_path, command):
    """Log values, with counts in a layer; genes have names beside their identifiers."""
    counts = np.random.default_rng(0).poisson(1.0, (60, 5)).astype(np.float32)
    adata = AnnData(np.log1p(counts / 3), layers={"umi": counts})
    adata.var_names = [f"ENSG0000000000{gene}" for gene in range(5)]
    adata.var["feature_name"] = [*"ABCDE"]
    adata.obs = adata.obs.assign(donor=[*"xy"] * 30, cell_type=[*"BTN"] * 20, age=range(60))
    adata.write_h5ad("cells.h5ad")
    return adata


def test_what_is_found_is_written_and_said(cells, command):
    code, printed, _ = command("init", "cells.h5ad")
    said = " ".join(printed.split())
    for found in (
        "60 cells x 5 genes",
        "in layer:umi",
        "column 'feature_name' of var",
        "'cell_type' of obs",
        "'donor'",
    ):
        assert code == 0 and found in said
    fields = ["counts=layer:umi", "gene_key=feature_name", "label_key=cell_type"]
    fields = [f"data.{field}" for field in ("path=cells.h5ad", *fields)]
    assert load_config("cells.yaml") == load_config("own_data.yaml", fields)


@pytest.mark.parametrize("column", ["seurat_annotations", "celltype_l1", "Author_Cell_Type"])
def test_cell_types_are_found_under_the_names_that_others_give_them(column, cells, command):
    """Not the donor, which is text as well."""
    cells.obs = cells.obs.rename(columns={"cell_type": column})
    cells.write_h5ad("cells.h5ad")
    assert command("init", "cells.h5ad")[0] == 0
    assert load_config("cells.yaml").data.label_key == column


def test_nothing_is_overwritten_and_wrong_cells_leave_nothing(cells, command):
    Path("mine.yaml").write_text("mine")
    code, _, error = command("init", "cells.h5ad", "--output", "mine.yaml")
    assert code == 2 and "mine.yaml" in error and Path("mine.yaml").read_text() == "mine"
    assert command("init", "nowhere.h5ad")[0] == 2
    assert sorted(os.listdir()) == ["cells.h5ad", "mine.yaml"]


def test_names_tell_the_orientation_of_a_text_file_or_the_user_is_asked(command):
    barcodes = [f"{'ACGT'[number % 4] * 14}-{number}" for number in range(9)]
    table = pd.DataFrame({"A": range(9), "B": 1}, index=barcodes)
    table.to_csv("m.csv")
    assert command("init", "m.csv")[0] == 0
    assert load_config("m.yaml").data.orientation == "cells_by_genes"
    table.reset_index(drop=True).to_csv("n.csv")
    code, _, error = command("init", "n.csv")
    assert code == 2 and "grn train n.csv --orientation cells_by_genes" in error
    pd.concat([table, table.head(1)]).to_csv("twice.csv")
    code, _, error = command("init", "twice.csv")
    assert code == 2 and "it has 2 cells called" in error


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda adata: setattr(adata, "var_names", [*"AABCD"]), "'A'"),
        (lambda adata: adata.layers.clear(), "data.values"),
    ],
    ids=["a gene twice", "no counts"],
)
def test_what_training_would_refuse_is_said(change, sentence, cells, command):
    cells.X = cells.layers["umi"] + 0.25
    change(cells)
    cells.write_h5ad("cells.h5ad")
    code, printed, _ = command("init", "cells.h5ad")
    assert code == 0 and sentence in printed


@pytest.mark.parametrize(
    ("given", "expected"),
    [("A,B", ["A", "B"]), ("[A, B]", ["A", "B"]), ("tfs.txt", "tfs.txt"), (None, "all")],
)
def test_regulators_by_name_are_an_option_of_train(given, expected):
    data = loaded_config("cells.h5ad", None, "cell_type", given).data
    assert (data.path, data.label_key, data.regulators) == ("cells.h5ad", "cell_type", expected)
