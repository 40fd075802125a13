"""`grn report` writes the report of a finished run again, and refuses anything else."""

from __future__ import annotations

import shutil

import pandas as pd

from grn.cli import main as cli


def test_the_report_is_written_again_from_the_run_or_its_model_folder(tiny_run, tmp_path, capsys):
    copy = shutil.copytree(tiny_run, tmp_path / "a run")
    (copy / "report.html").write_text("old")
    assert cli.main(["report", str(copy / "model")]) == 0
    assert capsys.readouterr().out == f"Report: {copy / 'report.html'}\n"
    page = (copy / "report.html").read_text("utf-8")
    assert "<title>a run</title>" in page and 'id="edges-and-network"' in page
    assert len(page.encode()) < 3_000_000
    for other in (
        tmp_path / "none",
        copy / "checkpoints",
        shutil.copytree(copy / "model", tmp_path / "alone"),
    ):
        assert cli.main(["report", str(other)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_known_regulons_name_the_drivers_of_a_finished_run(tiny_run, tmp_path, capsys):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    genes = (run / "model" / "vocabulary.txt").read_text().split()
    pairs = [
        f"{name},{gene},{1 if number % 2 else -1}"
        for name in ("A", "RPL3")
        for number, gene in enumerate(genes)
    ]
    known = tmp_path / "known.csv"
    known.write_text("source,target,weight\n" + "\n".join(pairs) + "\n")
    before = {
        name: (run / name).read_bytes() for name in ("edges.parquet", "network.h5ad", "config.yaml")
    }
    assert cli.main(["report", str(run), "--regulons", str(known)]) == 0
    said = capsys.readouterr().out
    assert "(known.csv)" in said and said.endswith(f"Report: {run / 'report.html'}\n")
    assert (
        set(pd.read_csv(run / "activity.csv")["regulons"]) == {"known.csv"}
        and (run / "known.csv").is_file()
    )
    page = (run / "report.html").read_text("utf-8")
    assert (
        page.index("by the activity of their known targets" if "Drivers" in said else "known.csv")
        > 0
    )
    assert {name: (run / name).read_bytes() for name in before} == before, (
        "nothing of the network changes"
    )
    assert cli.main(["report", str(run), "--regulons", str(tmp_path / "no.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
