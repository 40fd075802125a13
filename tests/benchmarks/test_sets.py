"""The sets have the documented shapes; needs the folder of benchmark data (GRN_BENCHMARK_DATA)."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pytest
from sets import SETS, digest, load_sets, read_expression, read_reference

needs_data = pytest.mark.skipif("GRN_BENCHMARK_DATA" not in os.environ, reason="GRN_BENCHMARK_DATA is not set")

SHAPES = {  # cells, genes, regulators (None: all), edges without self loops
    "sergio_ds1": (2700, 100, 10, 258),
    "sergio_ds1_clean": (2700, 100, 10, 258),
    "sergio_ds2": (1350, 400, 37, 1155),
    "sergio_ds2_clean": (1350, 400, 37, 1155),
    "boolode_GSD": (2000, 19, None, 76),
    "mdc_string": (383, 821, 264, 4815),
    "mdc_chip": (383, 821, 250, 3067),
}


@needs_data
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    (one,) = load_sets([name])
    regulators = None if one.regulators is None else len(one.regulators)
    assert (one.cells, len(one.genes), regulators, len(one.reference)) == SHAPES[name]
    assert one.matrix.shape == (one.cells, len(one.genes)) and one.matrix.dtype == np.float32
    assert (one.labels is None) == name.startswith("boolode") or len(one.labels) == one.cells
    assert set(one.reference["source"]) <= set(one.regulators or one.genes)
    assert set(one.reference["sign"]) == ({0} if name.startswith("mdc") else {-1, 1})
    prepared = one.prepared()
    assert prepared.values.dtype == np.float32 and np.isfinite(prepared.values).all()
    assert prepared.hash == one.hash


@needs_data
def test_counts_are_raw_and_peers_read_their_logarithms():
    (one,) = load_sets(["sergio_ds1"])
    assert (one.matrix == np.round(one.matrix)).all()
    seen = one.multiplicities()
    assert ((seen > 0) == (one.matrix > 0)).all()
    totals = one.matrix.sum(axis=1)
    expected = np.log1p(one.matrix[7] * np.median(totals[totals > 0]) / totals[7])
    np.testing.assert_allclose(seen[7], expected, rtol=1e-5)


@needs_data
def test_different_values_have_different_hashes():
    sets = load_sets(["sergio_*", "boolode_dyn-*"])
    assert len({one.hash for one in sets}) == len(sets)


def test_all_sets_are_listed_and_unknown_names_refused():
    assert len(SETS) == 16
    with pytest.raises(SystemExit, match="sergio_ds1"):
        load_sets(["sergio_ds3"])


def test_genes_called_na_and_signs_are_read_as_written(tmp_path):
    (tmp_path / "values.csv").write_text(",cell_1,cell_2\nNA,1,2\nnan,3.5,0\nc,0,1\n")
    matrix, genes, cells = read_expression(tmp_path / "values.csv")
    assert (genes, cells) == (["NA", "nan", "c"], ["cell_1", "cell_2"])
    np.testing.assert_array_equal(matrix, np.float32([[1, 3.5, 0], [2, 0, 1]]))
    (tmp_path / "edges.csv").write_text("Gene1,Gene2,Type\nNA,nan,+\nNA,NA,-\nc,NA,-\nNA,unmeasured,+\n")
    expected = pd.DataFrame({"source": ["NA", "c"], "target": ["nan", "NA"], "sign": [1, -1]})
    pd.testing.assert_frame_equal(read_reference(tmp_path / "edges.csv", genes), expected)


def test_the_hash_knows_values_names_and_transform():
    matrix = np.ones((2, 2), dtype=np.float32)
    hashes = {digest(m, g, t) for m in (matrix, 2 * matrix) for g in (["a", "b"], ["a", "c"]) for t in ("x", "y")}
    assert len(hashes) == 8
