"""Names of genes that R has changed, that are numbers, or that stand in another column: found, and
offered.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData

from grn.cells.genes.names import as_r_writes, near_miss
from grn.cells.load import load_cells
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError

MEMORY = DataConfig(path="memory:")


def cells(names, **var) -> AnnData:
    names = list(names)
    counts = np.random.default_rng(0).poisson(2.0, (100, len(names))).astype("float32")
    table = pd.DataFrame(var, index=names)
    return AnnData(
        counts, obs=pd.DataFrame(index=[f"c{place}x" for place in range(100)]), var=table
    )


@pytest.mark.parametrize(
    ("own", "of_r"),
    [
        ("HLA-DRA", "HLA.DRA"),
        ("NKX2-1", "NKX2.1"),
        ("GENE_A", "GENE-A"),
        ("7SK", "X7SK"),
        ("RP11-34.1", "RP11.34.1"),
    ],
)
def test_names_that_r_changed(own, of_r):
    assert as_r_writes(own) == as_r_writes(of_r)
    found = near_miss([own, "ABSENT"], [of_r, "OTHER"])
    assert repr(own) in found and repr(of_r) in found
    assert near_miss([own], [of_r, own]) is None, "the very name is there"


def test_regulators_that_r_renamed_are_found_and_offered():
    notes = load_cells(
        MEMORY.model_copy(update={"regulators": ["NKX2-1", "G1", "HLA-F"]}),
        0,
        cells(["NKX2.1", "HLA.F", "G1"]),
    )[0].notes
    assert "1 of 3 regulators" in notes[-1] and "('HLA-F' and 'HLA.F')" in notes[-1]


@pytest.mark.parametrize("first", [0, 1])
def test_numbers_in_place_of_names_are_said_with_the_column_that_has_names(first):
    names = [f"GENE{place}" for place in range(20)]
    adata = cells(map(str, range(first, 20 + first)), share=np.linspace(0, 1, 20), features=names)
    notes = load_cells(MEMORY, 0, adata)[0].notes
    assert "numbers" in notes[0] and "'features'" in notes[0] and "data.gene_key" in notes[0]
    by_key = load_cells(MEMORY.model_copy(update={"gene_key": "features"}), 0, adata)[0]
    assert by_key.vocabulary == tuple(names) and not any("numbers" in note for note in by_key.notes)
    with pytest.raises(DataError, match="features"):
        load_cells(MEMORY.model_copy(update={"regulators": ["GENE1", "GENE2"]}), 0, adata)


def test_entrez_ids_are_names():
    assert not any(
        "numbers" in note for note in load_cells(MEMORY, 0, cells(["7157", "672", "4609"]))[0].notes
    )
