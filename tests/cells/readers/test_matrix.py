"""One matrix, however it is stored."""

from itertools import product
from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy import sparse

from grn.cells.load import load_cells
from grn.cells.readers import matrix
from grn.cells.readers.registry import open_source
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError

FORMATS = {"dense": lambda x: x.toarray(), "csr": sparse.csr_matrix, "csc": sparse.csc_matrix}


def with_bytes(matrix):
    """The matrix with the positions that AnnData writes where it is asked for small ones."""
    matrix.indices = matrix.indices.astype(np.uint8)
    return matrix


SMALL = {
    f"{form} of bytes": lambda x, form=form: with_bytes(FORMATS[form](x)) for form in ("csr", "csc")
}


@pytest.mark.parametrize("form", [*FORMATS, *SMALL])
@pytest.mark.parametrize("counts", ["X", "raw", "layer:umi"])
def test_every_format_gives_the_same_cells(adata, load, monkeypatch, form, counts):
    monkeypatch.setattr(matrix, "ROWS", 7)  # several blocks, the last one short
    expected, _ = load(adata, label_key="label")
    adata.X = (FORMATS | SMALL)[form](adata.X)
    if counts != "X":
        adata.layers["umi"] = adata.X.copy()
        adata.raw = adata
        adata.X = adata.X * 0.5
    found, _ = load(adata, counts=counts, label_key="label")
    assert found.multiplicity.dtype == np.float32
    np.testing.assert_array_equal(found.multiplicity.toarray(), expected.multiplicity.toarray())
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert found.vocabulary == expected.vocabulary
    assert found.target_total == expected.target_total


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize(
    ("array", "change"),
    [
        ("indices", lambda x: np.where(np.arange(len(x)) == 3, 12345, x)),
        ("indptr", lambda x: np.where(np.arange(len(x)) == 5, x[-1] + 10, x)),
    ],
)
def test_indices_that_cannot_be_are_refused(adata, write, form, array, change):
    adata.X = FORMATS[form](adata.X)
    path = write(adata)
    with h5py.File(path, "r+") as file:
        values = file[f"X/{array}"][:]
        del file[f"X/{array}"]
        file[f"X/{array}"] = change(values)
    with pytest.raises(DataError, match="cannot be read"):
        load_cells(DataConfig(path=path))


def test_truncated_files_are_refused(adata, write, tmp_path):
    whole = Path(write(adata)).read_bytes()
    for kept, load in product((0, 100, 3000), (open_source, load_cells)):
        (tmp_path / "cut.h5ad").write_bytes(whole[:kept])
        with pytest.raises(DataError, match=r"cut\.h5ad cannot be read as an \.h5ad file"):
            load(DataConfig(path=str(tmp_path / "cut.h5ad")))
