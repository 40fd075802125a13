"""AnnData files: damage is a sentence, and so is a full disk, without a half file and without a
crash of HDF5.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from anndata.tests.helpers import assert_equal
from scipy import sparse

from grn.runtime.errors import DataError
from grn.runtime.h5ad import read_anndata, write_anndata


def some_cells() -> ad.AnnData:
    generator = np.random.default_rng(0)
    seen = generator.binomial(1, 0.3, (300, 200))
    values = sparse.csr_array(seen * generator.random(seen.shape)).astype(np.float32)
    adata = ad.AnnData(values, obs={"type": ["a", "β/b"] * 150})
    adata.raw = adata.copy()
    adata.varp["grn"] = sparse.identity(200, format="csr")
    adata.uns["grn"] = {"found": pd.DataFrame({"x": [1, 2]}, index=["0", "1"]), "version": "1"}
    return adata


def test_files_are_those_that_anndata_itself_writes(tmp_path):
    adata = some_cells()
    write_anndata(tmp_path / "ours.h5ad", adata.copy())
    adata.write_h5ad(tmp_path / "theirs.h5ad")
    ours, theirs = (read_anndata(tmp_path / f"{name}.h5ad") for name in ("ours", "theirs"))
    assert_equal(ours, theirs, exact=True)
    assert ours.uns["grn"]["version"] == "1" and ours.raw.shape == (300, 200)


FILLING = """
import resource, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_h5ad import some_cells
from grn.runtime.errors import RunFolderError
from grn.runtime.h5ad import write_anndata
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
adata = some_cells()
for size in (0, 10, 3000, 50_000, 200_000, 240_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        write_anndata(Path({folder!r}) / "cells.h5ad", adata)
    except RunFolderError as refused:
        print(size, refused)
"""


def test_hdf5_neither_crashes_nor_leaves_a_file_when_a_write_fails(tmp_path):
    """At exit, HDF5 would write again what it could not write, and end the process with a
    segmentation fault.
    """
    code = FILLING.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("cells.h5ad cannot be written (File too large)") == 6
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [5000, 0])
def test_damaged_files_are_named_in_one_sentence(size, tmp_path):
    write_anndata(tmp_path / "cells.h5ad", some_cells())
    os.truncate(tmp_path / "cells.h5ad", size)
    with pytest.raises(DataError, match=r"cells\.h5ad cannot be read as \.h5ad") as caught:
        read_anndata(tmp_path / "cells.h5ad")
    assert "\n" not in str(caught.value)
