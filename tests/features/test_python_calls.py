"""Calls from Python that gave a wrong answer without a word, another library's error, or advice
that does not help.
"""

from __future__ import annotations

import pytest

import grn
from grn.runtime.errors import DataError


def test_confidences_of_merged_types_are_at_most_one(run, adata):
    names = dict.fromkeys(run.cell_types, "cell")
    predicted = grn.predict(adata, run, map=names, copy=True, quiet=True)
    assert predicted.obs["grn_cell_type_confidence"].max() <= 1


def test_edges_in_parquet_are_no_cells(run):
    path = run.folder / "edges.parquet"
    for call in (grn.network, grn.train, lambda given: grn.predict(given, run)):
        with pytest.raises(DataError, match=path.name):
            call(path)


def test_activity_by_a_network_without_signs_says_so(run, adata):
    edges = run.edges[["source", "target", "weight"]]
    signed, unsigned = (
        grn.activity(adata, each, quiet=True).attrs["notes"]
        for each in (edges, edges.assign(weight=edges["weight"].abs()))
    )
    assert len(unsigned) == len(signed) + 1
