"""`grn report` writes the report of a finished run again, and refuses anything else."""

from __future__ import annotations

import shutil

from grn.cli import main as cli


def test_the_report_is_written_again_from_the_run_or_its_model_folder(tiny_run, tmp_path, capsys):
    copy = shutil.copytree(tiny_run, tmp_path / "a run")
    (copy / "report.html").write_text("old")
    assert cli.main(["report", str(copy / "model")]) == 0
    assert capsys.readouterr().out == f"Report: {copy / 'report.html'}\n"
    page = (copy / "report.html").read_text("utf-8")
    assert "<title>a run</title>" in page and 'id="edges-and-network"' in page
    assert len(page.encode()) < 3_000_000
    for other in (tmp_path / "none", copy / "checkpoints", shutil.copytree(copy / "model", tmp_path / "alone")):
        assert cli.main(["report", str(other)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
