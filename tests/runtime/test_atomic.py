"""Nothing is ever half-written, and no symbolic link leads a write or a removal elsewhere."""

import os
import stat
from errno import ENOSPC

import pytest

from grn.runtime.atomic import (
    refuse_unwritable,
    refuse_used_folder,
    remove_leftovers,
    replacing_file,
    replacing_folder,
    write_text,
)
from grn.runtime.errors import RunFolderError


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
    for error in (KeyboardInterrupt, ZeroDivisionError):
        with pytest.raises(error), replacing_file(path) as beside:
            beside.write_text("half")
            raise error
        assert os.listdir(tmp_path) == []
    write_text(path, "old")
    with pytest.raises(FileNotFoundError), replacing_file(path) as beside:
        beside.unlink()  # its writer moved it away
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_a_folder_takes_the_place_of_the_old_one(tmp_path):
    folder = tmp_path / "model"
    for text in ("old", "new"):
        with replacing_folder(folder) as beside:
            assert list(beside.iterdir()) == []
            (beside / text).write_text(text)
    assert os.listdir(folder) == ["new"]
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("moving_fails", [False, True])
def test_the_old_folder_stays_where_the_new_one_cannot_be_written(
    tmp_path, monkeypatch, moving_fails
):
    folder, move = tmp_path / "model", os.replace
    with replacing_folder(folder) as beside:
        (beside / "file").write_text("old")

    def refuse_the_new(source, target):
        if target == folder and (source / "file").read_text() == "new":
            raise OSError("no")
        move(source, target)

    monkeypatch.setattr(os, "replace", refuse_the_new)
    with pytest.raises(OSError, match="no"), replacing_folder(folder) as beside:
        (beside / "file").write_text("new")
        if not moving_fails:
            raise OSError("no")
    assert (folder / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["model"]


def test_permissions_honour_umask(tmp_path, umask):
    with replacing_folder(tmp_path / "model") as beside:
        write_text(beside / "file", "text")
    assert mode(tmp_path / "model") == 0o777 & ~umask
    assert mode(tmp_path / "model" / "file") == 0o666 & ~umask
    assert os.umask(umask) == umask, "and umask is as it was"


@pytest.mark.parametrize("writing", [replacing_file, replacing_folder])
def test_a_disk_that_fills_up_is_one_sentence_and_leaves_nothing(writing, tmp_path):
    with (
        pytest.raises(RunFolderError, match="No space left on device") as caught,
        writing(tmp_path / "out"),
    ):
        raise OSError(ENOSPC, "No space left on device")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_links_are_replaced_and_removed_and_what_they_lead_to_is_left_alone(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    for name in ("model", ".model-12345678-old", ".last-abcd_123.ckpt"):
        (run / name).symlink_to(tmp_path / "elsewhere")
    (run / "table.csv").symlink_to(tmp_path / "elsewhere" / "mine")
    with replacing_folder(run / "model") as beside:
        (beside / "file").write_text("new")
    write_text(run / "table.csv", "new")
    (run / ".model-abcdefgh").mkdir()
    (run / ".mine").touch()
    remove_leftovers(run, ("model", "last"))
    assert sorted(os.listdir(run)) == [".mine", "model", "table.csv"]
    assert not (run / "model").is_symlink() and not (run / "table.csv").is_symlink()
    assert (
        os.listdir(tmp_path / "elsewhere") == ["mine"]
        and (tmp_path / "elsewhere" / "mine").read_text() == "mine"
    )


def test_outputs_that_exist_or_cannot_be_made_are_refused_before_work_starts(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for output in ("file", "full", "link", "file/run"):
        with pytest.raises(RunFolderError):
            refuse_used_folder(tmp_path / output)
    for output in ("file/table.csv", "link/table.csv"):
        with pytest.raises(RunFolderError):
            refuse_unwritable(tmp_path / output)
    refuse_used_folder(None)
    refuse_used_folder(tmp_path / "deep" / "run")
    assert sorted(os.listdir(tmp_path)) == ["file", "full", "link"]
