"""Genes that speak for a cell type: those that were planted come first, in tables, on the command
line and drawn.
"""

from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest

import grn
from grn.cli.main import main
from grn.runtime.errors import DataError

TINY = {"model.members": 2, "model.width": 16, "network.false_discovery": False}


@pytest.fixture(scope="module")
def marked():
    """Cells of three types, each with two genes of its own, a pair of genes of a and b together;
    and their run.
    """
    generator = np.random.default_rng(0)
    types = np.repeat(["a", "b", "c"], 50)
    counts = generator.poisson(1.0, (150, 24)).astype(np.float32)
    for number, name in enumerate("abc"):
        counts[types == name, 2 * number : 2 * number + 2] += generator.poisson(4.0, (50, 2))
    counts[types != "c", 6:8] += generator.poisson(4.0, (100, 2))
    adata = anndata.AnnData(
        counts, obs=pd.DataFrame({"type": types}, index=[f"cell{i}" for i in range(150)])
    )
    adata.var_names = [f"g{i}" for i in range(24)]
    return adata, grn.train(adata, label="type", max_steps=80, set=TINY, quiet=True)


def test_planted_markers_speak_for_their_type_and_against_others(marked):
    adata, run = marked
    table = grn.explain(adata, run, sample=20, quiet=True)
    assert list(table) == ["cell_type", "gene", "effect", "agreement", "expressed", "cells"]
    for number, name in enumerate("abc"):
        own = table[table["cell_type"] == name]
        assert {f"g{2 * number}", f"g{2 * number + 1}"} <= set(own["gene"].head(4)), name
        assert (
            own["effect"].is_monotonic_decreasing and len(own) == 24 and (own["cells"] == 20).all()
        )
    together = grn.explain(
        adata, run, map={"a": "ab", "b": "ab"}, cell_type="ab", sample=20, quiet=True
    )
    assert {"g6", "g7"} <= set(together["gene"].head(8)) and {"g4", "g5"} & set(
        together["gene"].head(8)
    )


def test_a_cell_is_explained_by_what_hiding_a_gene_changes(marked):
    adata, run = marked
    table = grn.explain(adata, run, cell="cell3", cell_type="b", quiet=True).set_index("gene")
    assert (table["cells"] == 1).all() and (table["cell_type"] == "b").all()
    assert table.loc[["g0", "g1"], "effect"].mean() < 0, "genes of a speak against b"


def test_the_command_writes_a_table_and_a_picture(marked, tmp_path, capsys, monkeypatch):
    adata, run = marked
    monkeypatch.chdir(tmp_path)
    adata.write_h5ad("cells.h5ad")
    command = ["explain", "cells.h5ad", str(run.folder), "--cell-type", "a"]
    assert main([*command, "--output", "table.csv"]) == 0
    assert "a (" in capsys.readouterr().out
    assert pd.read_csv("table.csv")["gene"].head(4).isin(["g0", "g1"]).sum() == 2
    assert main([*command, "--output", "a.png"]) == 0 and (tmp_path / "a.png").stat().st_size > 1000
    assert main([*command[:3], "--cell-type", "d"]) == 2
    assert "'d'" in capsys.readouterr().err
    axes = grn.plots.cell_type_genes(
        grn.explain(adata, run, sample=2, quiet=True), "b", top=3, show=False
    )
    assert (
        next(text.get_text() for text in axes.get_yticklabels()) in ("g2", "g3")
        and 3 < len(axes.patches) <= 6
    )


def test_a_cell_without_counts_is_not_explained(marked):
    adata, run = marked
    emptied = adata.copy()
    emptied.X[:2] = 0
    for cell in ("cell1", "cell150"):
        with pytest.raises(DataError, match=cell):
            grn.explain(emptied, run, cell=cell, quiet=True)
    table = grn.explain(emptied, run, quiet=True, sample=1000)
    assert table.groupby("cell_type")["cells"].first().sum() == len(adata) - 2
