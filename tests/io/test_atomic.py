"""Nothing is ever half-written."""

import os
import signal
import stat
import subprocess
import sys

import h5py
import numpy as np
import pytest
from anndata import AnnData
from scipy import sparse

from grn.errors import DataError, RunFolderError
from grn.io import atomic as files
from grn.io.atomic import replacing_file, replacing_folder, write_text
from grn.io.h5ad import read_anndata
from grn.io.tables import nearest_file


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_takes_the_place_of_the_old_one(tmp_path):
    path = tmp_path / "deep" / "table.csv"
    write_text(path, "old")
    with replacing_file(path) as beside:
        assert (beside.parent, beside.suffix) == (path.parent, ".csv")
        beside.write_text("new")
        assert path.read_text() == "old", "until the end the old file is there, whole"
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["table.csv"]


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "table.csv"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), replacing_file(path) as beside:
        beside.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_an_exception_makes_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError), replacing_file(tmp_path / "table.csv"):
        1 / 0  # noqa: B018
    assert os.listdir(tmp_path) == []


def test_a_file_that_its_writer_moved_away_is_an_error_and_the_old_one_stays(tmp_path):
    path = tmp_path / "table.csv"
    write_text(path, "old")
    with pytest.raises(FileNotFoundError), replacing_file(path) as beside:
        beside.unlink()
    assert path.read_text() == "old"


def test_permissions_of_a_file_honour_umask(tmp_path, umask):
    write_text(tmp_path / "table.csv", "text")
    assert mode(tmp_path / "table.csv") == 0o666 & ~umask
    assert os.umask(umask) == umask, "and umask is as it was"


def test_a_folder_takes_the_place_of_the_old_one(tmp_path):
    folder = tmp_path / "model"
    for text in ("old", "new"):
        with replacing_folder(folder) as beside:
            assert list(beside.iterdir()) == []
            (beside / text).write_text(text)
    assert os.listdir(folder) == ["new"]
    assert os.listdir(tmp_path) == ["model"]


def test_an_exception_leaves_the_old_folder_and_nothing_else(tmp_path):
    folder = tmp_path / "model"
    with replacing_folder(folder) as beside:
        (beside / "file").write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing_folder(folder) as beside:
        (beside / "file").write_text("half")
        raise KeyboardInterrupt
    assert (folder / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["model"]


def test_the_old_folder_comes_back_when_the_new_one_cannot_be_moved_in(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    with replacing_folder(folder) as beside:
        (beside / "file").write_text("old")
    move = os.replace

    def refuse_the_new(source, target):
        if target == folder and (source / "file").read_text() == "new":
            raise OSError("no")
        move(source, target)

    monkeypatch.setattr(os, "replace", refuse_the_new)
    with pytest.raises(OSError, match="no"), replacing_folder(folder) as beside:
        (beside / "file").write_text("new")
    assert (folder / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["model"]


def test_permissions_of_a_folder_honour_umask(tmp_path, umask):
    with replacing_folder(tmp_path / "model") as beside:
        (beside / "file").write_text("text")
    assert mode(tmp_path / "model") == 0o777 & ~umask
    assert mode(tmp_path / "model" / "file") == 0o666 & ~umask


def never_ends(found) -> None:
    while True:
        pass


def crashes(found) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is started")
@pytest.mark.parametrize("reads", [never_ends, crashes])
def test_a_file_that_hdf5_never_gets_to_the_end_of_is_refused(tmp_path, monkeypatch, reads):
    """Damaged lists of texts do that inside HDF5, where nothing can stop it."""
    path = tmp_path / "cells.h5ad"
    AnnData(np.ones((2, 3), np.float32)).write_h5ad(path)
    files.refuse_endless(path)  # sound
    path.touch()  # another file, as far as anybody knows
    os.utime(path, ns=(1, 1))
    monkeypatch.setattr(files, "_read_texts", reads)
    monkeypatch.setattr(files, "SECONDS_OF_TEXTS", 1)
    for _ in range(2):  # what is known is not tried again
        with pytest.raises(DataError, match=r"cells\.h5ad cannot be read: HDF5 does not get to the end"):
            files.read_anndata(path)
        monkeypatch.setattr(files, "_read_texts", None)


def test_a_damaged_shape_is_not_blamed_on_the_memory(tmp_path):
    path = tmp_path / "cells.h5ad"
    AnnData(sparse.csr_matrix(np.ones((2, 3), np.float32))).write_h5ad(path)
    with h5py.File(path, "r+") as file:
        file["X"].attrs["shape"] = [10**13, 3]
    with pytest.raises(DataError, match=r"cells\.h5ad cannot be read as \.h5ad"):
        files.read_anndata(path)


def test_a_name_that_is_no_text_is_refused(tmp_path):
    for refuse in (files.refuse_used_folder, files.refuse_unwritable):
        with pytest.raises(RunFolderError, match=r"is not text in UTF-8; choose another output"):
            refuse(tmp_path / "caf\udce9")


@pytest.mark.parametrize(
    ("wanted", "near"),
    [
        ("tfs.txt", None),
        ("note.txt", "notes.txt"),
        ("notes.csv", "notes.txt"),
        ("cels.h5ad", "cells.h5ad"),
        ("a", None),
    ],
)
def test_an_ending_in_common_makes_no_two_names_alike(wanted, near, tmp_path):
    for name in ("notes.txt", "cells.h5ad"):
        (tmp_path / name).touch()
    assert nearest_file(tmp_path / wanted) == (tmp_path / near if near else None)


def test_a_file_that_another_program_writes_is_not_called_damaged(tmp_path):
    code = f"import h5py, os; file = h5py.File({str(tmp_path / 'cells.h5ad')!r}, 'r+', libver='latest'); os._exit(0)"
    with h5py.File(tmp_path / "cells.h5ad", "w", libver="latest") as file:
        file.create_group("obs")
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(DataError, match=r"cells\.h5ad is open in another program that writes it, or was when that"):
        read_anndata(tmp_path / "cells.h5ad")
