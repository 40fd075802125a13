"""Antibodies, peaks and guides beside genes: left out of every format, and of everything that
counts.
"""

from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse

from grn.cells.atlas import Atlas
from grn.cells.genes.feature_types import are_genes
from grn.cells.load import cells_in_pieces, load_cells
from grn.cells.shards import shard
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError

GENES = [f"GENE{place}" for place in range(60)]
NOTE = "20 of 80 features of X are not genes and are left out (Antibody Capture: 20)."


def cite(seed: int = 0) -> AnnData:
    """200 cells of 60 genes, with about 30 counts each, and of 20 antibodies, which have 4000."""
    generator = np.random.default_rng(seed)
    counts = np.hstack(
        [generator.poisson(200, (200, 20)), generator.poisson(0.5, (200, 60))]
    ).astype("float32")
    obs = pd.DataFrame({"t": ["a", "b"] * 100}, index=[f"c{place}x" for place in range(200)])
    var = pd.DataFrame({"feature_types": ["Antibody Capture"] * 20 + ["Gene Expression"] * 60})
    return AnnData(
        sparse.csr_matrix(counts),
        obs=obs,
        var=var.set_index(pd.Index([f"AB{i}" for i in range(20)] + GENES)),
    )


@pytest.fixture(params=["memory", "h5ad", "zarr", "raw", "dense"])
def loaded(request, tmp_path):
    adata, path = cite(), tmp_path / f"cite.{'zarr' if request.param == 'zarr' else 'h5ad'}"
    config = DataConfig(path=str(path), label_key="t", multiplicity="counts")
    if request.param == "memory":
        return load_cells(config, adata=adata)[0]
    if request.param == "raw":
        adata.raw = adata.copy()
        adata, config = adata[:, :30].copy(), config.model_copy(update={"counts": "raw"})
    if request.param == "dense":
        adata.X = adata.X.toarray()
    (adata.write_zarr if path.suffix == ".zarr" else adata.write_h5ad)(path)
    return load_cells(config)[0]


def test_what_is_no_gene_is_left_out_with_a_note(loaded):
    assert loaded.vocabulary == tuple(GENES)
    assert NOTE.removeprefix("20 of 80 features of X") in loaded.notes[0]
    np.testing.assert_array_equal(loaded.multiplicity.toarray(), cite().X[:, 20:].toarray())


def test_the_depth_is_that_of_the_genes():
    assert load_cells(DataConfig(path="memory:"), adata=cite())[0].target_total == 30


def test_a_trained_model_reads_genes_alone():
    adata = cite()
    alone = adata[:, 20:].copy()
    config = DataConfig(path="memory:", genes="all")
    options = {"rows": 64, "target_total": 30.0}
    both = [cells_in_pieces(each, config, GENES, **options) for each in (adata, alone)]
    for one, other in zip(*(each.pieces() for each in both), strict=True):
        np.testing.assert_array_equal(one.multiplicity.toarray(), other.multiplicity.toarray())
    assert both[0].notes[0] == NOTE


def test_cells_that_stay_in_their_file_are_read_without_them(tmp_path):
    adata = anndata.concat([cite(seed) for seed in range(6)], merge="same")
    adata.obs_names = [f"c{place}x" for place in range(adata.n_obs)]
    adata.write_h5ad(tmp_path / "large.h5ad")
    fields = {"genes": "all", "sample": 1000, "multiplicity": "counts", "label_key": "t"}
    config = DataConfig(path=str(tmp_path / "large.h5ad"), **fields)
    cells, split = load_cells(config)
    atlas = Atlas(config, cells, split, np.ones((1000, 1), np.float32), np.zeros(1000, np.int16))
    rows = np.arange(100, 130)
    read = atlas.table(rows, None, "cpu")[np.arange(30)]
    found = read.dense(read.value).numpy()
    np.testing.assert_array_equal(found, adata.X[rows][:, 20:].toarray())


def test_files_are_joined_by_their_genes(tmp_path):
    for seed in range(2):
        cite(seed).write_h5ad(tmp_path / f"{seed}.h5ad")
    lines: list[str] = []
    shard([tmp_path / "0.h5ad", tmp_path / "1.h5ad"], tmp_path / "all.h5ad", lines.append)
    found = anndata.read_h5ad(tmp_path / "all.h5ad")
    assert list(found.var_names) == GENES and "20 of 80 features" in lines[0]
    np.testing.assert_array_equal(found.X[200:].toarray(), cite(1).X[:, 20:].toarray())


@pytest.mark.parametrize(
    ("column", "kinds", "expected"),
    [
        ("feature_types", ["GEX", "ADT", "ATAC"], [True, False, False]),
        ("feature_types", ["Gene Expression", "Peaks", None], [True, False, True]),
        ("modality", ["rna", "protein", "RNA"], [True, False, True]),
        (
            "feature_type",
            ["protein_coding", "lncRNA", "protein_coding"],
            [True, True, True],
        ),  # kinds of genes
        ("feature_types", ["unknown"] * 3, [True, True, True]),
        ("kind", ["Peaks"] * 3, [True, True, True]),
    ],
)
def test_which_features_are_genes(column, kinds, expected):
    assert are_genes(pd.DataFrame({column: kinds})).tolist() == expected


def test_data_without_genes_are_refused():
    adata = cite()[:, :20].copy()
    with pytest.raises(DataError, match=r"no genes among its features \(Antibody Capture: 20\)"):
        load_cells(DataConfig(path="memory:"), adata=adata)
