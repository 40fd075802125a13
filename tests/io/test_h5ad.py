"""A disk that is full: a sentence, no half file, and no crash of HDF5."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import namedtuple
from errno import ENOSPC
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from grn.errors import RunFolderError
from grn.io.atomic import replacing_file, replacing_folder
from grn.io.h5ad import in_units, read_anndata, refuse_too_little_room, size_of, write_anndata


def some_cells() -> ad.AnnData:
    values = sparse.random(300, 200, 0.3, format="csr", dtype=np.float32, random_state=np.random.default_rng(0))
    adata = ad.AnnData(values, obs=pd.DataFrame({"type": ["a", "β/b"] * 150}, index=[f"c{i}" for i in range(300)]))
    adata.raw = adata.copy()
    adata.varp["grn"] = sparse.identity(200, format="csr")
    adata.uns["grn"] = {"found": pd.DataFrame({"x": [1, 2]}, index=["0", "1"]), "version": "1"}
    return adata


def test_files_are_those_that_anndata_itself_writes(tmp_path):
    adata = some_cells()
    write_anndata(tmp_path / "ours.h5ad", adata.copy())
    adata.write_h5ad(tmp_path / "theirs.h5ad")
    ours, theirs = (read_anndata(tmp_path / f"{name}.h5ad") for name in ("ours", "theirs"))
    pd.testing.assert_frame_equal(ours.obs, theirs.obs)
    for one, other in ((ours.X, theirs.X), (ours.raw.X, theirs.raw.X), (ours.varp["grn"], theirs.varp["grn"])):
        assert one.dtype == other.dtype and (one != other).nnz == 0
    pd.testing.assert_frame_equal(ours.uns["grn"]["found"], theirs.uns["grn"]["found"])
    assert ours.uns["grn"]["version"] == "1"
    sizes = [(tmp_path / f"{name}.h5ad").stat().st_size for name in ("ours", "theirs")]
    assert 0.5 * sizes[0] < size_of(adata) < 1.5 * sizes[0] and abs(sizes[0] - sizes[1]) < 0.05 * sizes[1]


def test_too_little_room_is_known_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("Usage", "free")(100_000))
    sentence = r"cells\.h5ad needs about .* kB and the disk has 100 kB left; free some space, or choose another output"
    with pytest.raises(RunFolderError, match=sentence):
        write_anndata(tmp_path / "cells.h5ad", some_cells())
    assert list(tmp_path.iterdir()) == []
    refuse_too_little_room(tmp_path / "deep" / "file", 1000)


@pytest.mark.parametrize("writing", [replacing_file, replacing_folder])
def test_a_disk_that_fills_up_is_one_sentence_and_leaves_nothing(writing, tmp_path):
    sentence = r"out cannot be written \(No space left on device\); free some space"
    with pytest.raises(RunFolderError, match=sentence), writing(tmp_path / "out"):
        raise OSError(ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


FILLING = """
import resource, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_h5ad import some_cells
from grn.errors import RunFolderError
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
    """At exit, HDF5 would write again what it could not write, and end the process with a segmentation fault."""
    code = FILLING.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 6 and all("cells.h5ad cannot be written (File too large); free" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_sizes_are_in_units():
    assert [in_units(size) for size in (12, 1500, 2.5e6, 7.25e9)] == ["12 bytes", "1.5 kB", "2.5 MB", "7.25 GB"]
