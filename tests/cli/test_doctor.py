"""`grn doctor`: what is there, which kernels run and why, and whether they are right."""

from __future__ import annotations

import pytest

import flashsign.check
import flashsign.dispatch
from flashsign.check import Checked
from grn.cli.main import main
from grn.config.files import load_config
from grn.training import rehearsal


def test_the_machine_and_its_kernels_are_described(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "  torch: " in said and "  CPU: " in said
    assert "  2000 genes in a bag: " in said and "WRONG" not in said


def test_a_kernel_that_computes_wrongly_is_found(capsys, monkeypatch):
    found = [Checked("triton_stream bfloat16 32", 1.0, "its output is off"), Checked("edge_sums bfloat16 32", 1.0, "")]
    monkeypatch.setattr(flashsign.check, "check_kernels", lambda dtypes, widths: found)
    monkeypatch.setattr(flashsign.dispatch, "plan", lambda *_, **__: flashsign.dispatch.Plan("triton_stream"))
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "  triton_stream bfloat16 32: WRONG: its output is off" in said and "  edge_sums bfloat16 32: ok" in said
    assert "1 of the kernels compute wrongly on this machine" in said


def test_an_estimate_is_printed_for_a_run(capsys, monkeypatch):
    seen = []

    def rehearsed(config, say):
        seen.append(config)
        return rehearsal.Estimate(10.0, 60.0, 5.0, 600, 0.1, 2_000_000_000, None, 25.0)

    monkeypatch.setattr(rehearsal, "rehearse", rehearsed)
    assert main(["doctor", "simulated.yaml"]) == 0
    said = capsys.readouterr().out
    assert seen == [load_config("simulated.yaml")]
    for line in ("training: at most 60 s, 600 steps of 100 ms", "in all: at most 75 s", "  memory: 2 GB"):
        assert line in said


def test_wrong_cells_are_said_before_the_kernels_are_tested(tmp_path, monkeypatch, capsys):
    import anndata
    import numpy as np

    anndata.AnnData(np.ones((8, 4), np.float32)).write_h5ad(tmp_path / "cells.h5ad")
    monkeypatch.setattr(flashsign.dispatch, "plan", lambda *_, **__: pytest.fail("the kernels were tested first"))
    config = tmp_path / "mine.yaml"
    config.write_text(f"data: {{path: {tmp_path / 'cells.h5ad'}, label_key: type}}")
    assert main(["doctor", str(config)]) == 2
    printed = capsys.readouterr()
    assert "type" in printed.err and not printed.out
