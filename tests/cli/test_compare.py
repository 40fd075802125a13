"""`grn compare` on a finished run: what it prints and writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from grn.cli import main as cli

COLUMNS = ["cell_type", "source", "target", "effect", "low", "high", "p_value", "q_value"]


@pytest.fixture
def grn_compare(tiny_run, capsys, tmp_path, monkeypatch):
    """Runs the command on the tiny run in an empty folder: its code, what it printed, and its
    error.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments, folder=tiny_run):
        code = cli.main(["compare", str(folder), *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_table_is_written_and_what_differs_is_printed(grn_compare, ending):
    output = f"found/comparison.{ending}"
    code, printed, _ = grn_compare("--by", "cell_type", "--output", output)
    assert code == 0
    assert "40 and 40 cells" in printed and printed.endswith(f"Table: {output}\n")
    table = pd.read_csv(output) if ending == "csv" else pd.read_parquet(output)
    assert list(table) == [
        *COLUMNS,
        "weight_type 1",
        "weight_type 2",
        "level_source",
        "level_target",
    ]
    assert (
        len(table) == 4 * 15
        and table["q_value"].is_monotonic_increasing
        and table.notna().all(None)
    )
    differ = int((table["q_value"] <= 0.05).sum())
    assert sum(line.startswith("all ") for line in printed.splitlines()) == min(differ, 15)
    before = Path(output).read_bytes()
    code, _, error = grn_compare("--by", "cell_type", "--output", output)
    assert code == 2 and error.count("\n") == 1 and Path(output).read_bytes() == before
