"""Genes that speak for a cell type: those that were planted come first, in tables, on the command
line and drawn.
"""

from __future__ import annotations

import anndata
import numpy as np
import pytest

import grn
from grn.runtime.errors import DataError

TINY = {"model.members": 2, "model.width": 16, "network.false_discovery": False}


@pytest.fixture(scope="module")
def marked():
    """Cells of three types, each with two genes of its own, a pair of genes of a and b together;
    and their run.
    """
    generator = np.random.default_rng(0)
    types = np.repeat([*"abc"], 50)
    counts = generator.poisson(1.0, (150, 24)).astype(np.float32)
    for number, name in enumerate("abc"):
        counts[types == name, 2 * number : 2 * number + 2] += generator.poisson(4.0, (50, 2))
    counts[types != "c", 6:8] += generator.poisson(4.0, (100, 2))
    adata = anndata.AnnData(counts, obs={"type": types})
    adata.obs_names = [f"cell{number}" for number in range(150)]
    adata.var_names = [f"g{number}" for number in range(24)]
    return adata, grn.train(adata, label="type", max_steps=80, set=TINY)


def test_planted_markers_speak_for_their_type(marked):
    adata, run = marked
    table = grn.explain(adata, run, sample=20)
    for number, name in enumerate("abc"):
        own = table[table["cell_type"] == name]
        assert {f"g{2 * number}", f"g{2 * number + 1}"} <= set(own["gene"].head(4)), name
        assert own["effect"].is_monotonic_decreasing and len(own) == 24
        assert (own["cells"] == 20).all()


def test_genes_of_two_types_speak_for_both_together(marked):
    adata, run = marked
    both = {"map": {"a": "ab", "b": "ab"}, "cell_type": "ab"}
    first = set(grn.explain(adata, run, **both, sample=20)["gene"].head(8))
    assert {"g6", "g7"} <= first and {"g4", "g5"} & first


def test_a_cell_is_explained_for_the_type_that_is_asked_for(marked):
    adata, run = marked
    table = grn.explain(adata, run, cell="cell3", cell_type="b").set_index("gene")
    assert (table["cells"] == 1).all() and (table["cell_type"] == "b").all()
    assert table.loc[["g0", "g1"], "effect"].mean() < 0, "genes of a speak against b"


def test_a_cell_without_counts_is_not_explained(marked):
    adata, run = marked
    emptied = adata.copy()
    emptied.X[:2] = 0
    for cell in ("cell1", "cell150"):
        with pytest.raises(DataError, match=cell):
            grn.explain(emptied, run, cell=cell)
    table = grn.explain(emptied, run, sample=1000)
    assert table.groupby("cell_type")["cells"].first().sum() == len(adata) - 2
