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


def test_a_file_takes_the_place_of_the_old_one(tmp_path):
    path = tmp_path / "deep" / "table.csv"
    write_text(path, "old")
    with replacing_file(path) as beside:
        assert (beside.parent, beside.suffix) == (path.parent, ".csv")
        beside.write_text("new")
        assert path.read_text() == "old", "until the end the old file is there, whole"
    assert path.read_text() == "new" and os.listdir(path.parent) == ["table.csv"]


@pytest.mark.parametrize("old", [[], ["table.csv"]])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path, old, error):
    for name in old:
        (tmp_path / name).write_text("old")
    with pytest.raises(error), replacing_file(tmp_path / "table.csv") as beside:
        beside.write_text("half")
        raise error
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"] * len(old)


def test_a_folder_takes_the_place_of_the_old_one(tmp_path):
    for text in ("old", "new"):
        with replacing_folder(tmp_path / "model") as beside:
            assert list(beside.iterdir()) == []
            (beside / text).write_text(text)
    assert os.listdir(tmp_path) == ["model"] and os.listdir(tmp_path / "model") == ["new"]


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
    assert (folder / "file").read_text() == "old" and os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_honour_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        with replacing_folder(tmp_path / "model") as beside:
            write_text(beside / "file", "text")
    finally:
        assert os.umask(before) == umask, "and umask is as it was"
    for path, most in ((tmp_path / "model", 0o777), (tmp_path / "model" / "file", 0o666)):
        assert stat.S_IMODE(path.stat().st_mode) == most & ~umask


@pytest.mark.parametrize("writing", [replacing_file, replacing_folder])
def test_a_disk_that_fills_up_is_one_sentence_and_leaves_nothing(writing, tmp_path):
    full = "No space left on device"
    with pytest.raises(RunFolderError, match=full) as caught, writing(tmp_path / "out"):
        raise OSError(ENOSPC, full)
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


def test_links_are_replaced_and_removed_and_what_they_lead_to_is_left_alone(tmp_path):
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    for folder in (elsewhere, run, run / ".model-abcdefgh"):
        folder.mkdir()
    (elsewhere / "mine").write_text("mine")
    for name in ("model", ".model-12345678-old", ".last-abcd_123.ckpt"):
        (run / name).symlink_to(elsewhere)
    (run / "table.csv").symlink_to(elsewhere / "mine")
    (run / ".mine").touch()
    with replacing_folder(run / "model") as beside:
        (beside / "file").write_text("new")
    write_text(run / "table.csv", "new")
    remove_leftovers(run, ("model", "last"))
    assert sorted(os.listdir(run)) == [".mine", "model", "table.csv"]
    assert not (run / "model").is_symlink() and not (run / "table.csv").is_symlink()
    assert [path.read_text() for path in elsewhere.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("refuse", "output"),
    [
        *((refuse_used_folder, output) for output in ("file", "full", "link", "file/run")),
        *((refuse_unwritable, output) for output in ("file/table.csv", "link/table.csv")),
    ],
)
def test_outputs_that_exist_or_cannot_be_made_are_refused_before_work_starts(
    refuse, output, tmp_path
):
    (tmp_path / "full").mkdir()
    for file in ("file", "full/mine"):
        (tmp_path / file).touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunFolderError):
        refuse(tmp_path / output)
    refuse_used_folder(tmp_path / "deep" / "run")
    assert sorted(os.listdir(tmp_path)) == ["file", "full", "link"]
