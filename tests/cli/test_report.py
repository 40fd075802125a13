"""`grn report` writes the report of a finished run again, and refuses anything else."""

from __future__ import annotations

import shutil

import pytest

from grn.cli import main as cli


@pytest.fixture
def copy(tiny_run, tmp_path):
    return shutil.copytree(tiny_run, tmp_path / "a run")


def test_the_report_is_written_again(copy, capsys):
    (copy / "report.html").write_text("old")
    assert cli.main(["report", str(copy)]) == 0
    assert capsys.readouterr().out == f"Report: {copy / 'report.html'}\n"
    page = (copy / "report.html").read_text("utf-8")
    assert "<title>a run</title>" in page and 'id="edges-and-network"' in page
    assert len(page.encode()) < 3_000_000


@pytest.mark.parametrize(
    ("folder", "sentence"),
    [("none", "none does not exist"), ("a run/checkpoints", "holds no run"), ("a run/model/", "")],
)
def test_what_is_no_run_is_one_sentence(copy, tmp_path, capsys, monkeypatch, folder, sentence):
    monkeypatch.chdir(tmp_path)
    code = cli.main(["report", folder])
    assert (code, capsys.readouterr().err.count("\n")) == ((2, 1) if sentence else (0, 0))


def test_a_model_alone_has_no_report(copy, tmp_path, capsys):
    alone = shutil.copytree(copy / "model", tmp_path / "alone")
    assert cli.main(["report", str(alone)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
