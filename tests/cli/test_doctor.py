"""`grn doctor`: what is there, which kernels run and why, and whether they are right."""

from __future__ import annotations

import pytest

from grn.cli.main import main
from grn.model import kernel_check
from grn.training import rehearsal


def test_the_machine_is_described_and_its_kernels_are_tested(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "  torch: " in said and "  CPU: " in said
    assert "  2000 genes in a bag: " in said
    assert "  torch_stream, float32: " in said and "WRONG" not in said


def test_a_kernel_that_computes_wrongly_is_found(capsys, monkeypatch):
    ordinary = kernel_check.spherical_attention
    monkeypatch.setattr(kernel_check, "spherical_attention", lambda q, k, v, m: ordinary(q, -k, v, m))
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "WRONG" in said and "of the kernels compute wrongly on this machine" in said


def test_an_estimate_is_printed_for_a_run(capsys, monkeypatch):
    seen = []

    def rehearsed(config, say):
        seen.append(config)
        return rehearsal.Estimate(10.0, 60.0, 5.0, 600, 0.1, 2_000_000_000, None, 25.0)

    monkeypatch.setattr(rehearsal, "rehearse", rehearsed)
    assert main(["doctor", "simulated.yaml", "--set", "trainer.max_steps=600"]) == 0
    said = capsys.readouterr().out
    assert seen[0].trainer.max_steps == 600
    for line in ("training: at most 60 s, 600 steps of 100 ms", "in all: at most 75 s", "  memory: 2 GB"):
        assert line in said


def test_wrong_cells_are_said_before_the_kernels_are_tested(tmp_path, monkeypatch, capsys):
    import anndata
    import numpy as np

    anndata.AnnData(np.ones((8, 4), np.float32)).write_h5ad(tmp_path / "cells.h5ad")
    monkeypatch.setattr(kernel_check, "self_test", lambda: pytest.fail("the kernels were tested first"))
    assert main(["doctor", str(tmp_path / "cells.h5ad"), "--set", "data.label_key=type"]) == 2
    printed = capsys.readouterr()
    assert "type" in printed.err and not printed.out
