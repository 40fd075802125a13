"""`grn perturb` on a finished run: what it prints and writes, and what it refuses."""

from __future__ import annotations

import anndata
import pandas as pd
import pytest

from grn.cli import main as cli


@pytest.fixture
def grn_perturb(tiny_run, capsys, tmp_path, monkeypatch):
    """Runs the command on the tiny run in an empty folder: its code, what it printed, and its
    error.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = cli.main(["perturb", str(tiny_run), *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def regulator(tiny_run):
    return pd.read_parquet(tiny_run / "edges.parquet")["source"][0]


def test_the_table_is_printed_and_written(grn_perturb, regulator):
    code, printed, _ = grn_perturb(
        "--knock-out", regulator, "--cell-type", "type 1", "--output", "found.csv"
    )
    assert code == 0 and printed.startswith(f"knock-out of {regulator} in 40 cells, 1 step")
    assert printed.endswith("\nTable: found.csv\n")
    table = pd.read_csv("found.csv")
    assert (
        list(table) == ["gene", "change", "effect", "sd", "before", "perturbed", "low", "high"]
        and len(table) == 16
    )
    assert f"No edge of {regulator} is certain in these cells" in " ".join(printed.split())
    assert table["gene"][0] == regulator and table["effect"][1:].abs().is_monotonic_decreasing
    assert grn_perturb("--knock-out", regulator, "--output", "found.csv")[0] == 2


def test_cells_are_written(grn_perturb, regulator):
    code, printed, _ = grn_perturb(
        "--overexpress",
        regulator,
        "--where",
        "cell_type=type 2",
        "--steps",
        3,
        "--output",
        "cells.h5ad",
    )
    assert code == 0 and printed.endswith("\nCells: cells.h5ad\n") and "3 steps" in printed
    found = anndata.read_h5ad("cells.h5ad")
    assert found.shape == (40, 16) and found.layers["grn_change"].shape == (40, 16)
    assert found.uns["grn_perturb"]["steps"] == 3


def test_a_screen_lists_every_regulator(grn_perturb):
    arguments = ("--cell-type", "type 1", "--towards", "type 2")
    code, printed, _ = grn_perturb(*arguments, "--output", "screen.parquet")
    assert code == 0 and "towards type 2" in printed
    found = pd.read_parquet("screen.parquet")
    assert len(found) == 4 and found["towards"].is_monotonic_decreasing
