"""The folder of a run is new or empty."""

import datetime
import os

import pytest

from grn.errors import RunFolderError
from grn.run_folder import make_run_folder


def test_the_same_command_works_twice(tmp_path):
    folders = [make_run_folder(None, "pbmc", tmp_path / "runs") for _ in range(3)]
    today = datetime.date.today().isoformat()
    assert [folder.name for folder in folders] == [f"pbmc-{today}-{number}" for number in (1, 2, 3)]
    assert all(list(folder.iterdir()) == [] for folder in folders)


def test_a_number_that_is_taken_by_a_file_is_passed_over(tmp_path):
    (tmp_path / f"pbmc-{datetime.date.today().isoformat()}-1").touch()
    assert make_run_folder(None, "pbmc", tmp_path).name.endswith("-2")


def test_an_output_is_made_with_its_parents(tmp_path):
    folder = make_run_folder(tmp_path / "a" / "b", "pbmc")
    assert folder == tmp_path / "a" / "b" and folder.is_dir()


def test_an_empty_output_is_taken(tmp_path):
    assert make_run_folder(tmp_path, "pbmc") == tmp_path


def test_an_output_that_holds_something_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunFolderError, match=r"already exists and is not an empty folder; choose another"):
        make_run_folder(tmp_path, "pbmc")
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="already exists"):
        make_run_folder(tmp_path / "file", "pbmc")


def test_a_folder_that_cannot_be_made_is_named_in_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"cannot be made \(Not a directory\); choose an output folder that"):
        make_run_folder(None, "pbmc", tmp_path / "file" / "runs")
    with pytest.raises(RunFolderError, match=r"cannot be made, because .*file is a file; choose another output"):
        make_run_folder(tmp_path / "file" / "run", "pbmc")
    assert os.listdir(tmp_path) == ["file"]
