"""`grn evaluate` prints and writes what grn.evaluate returns."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

import grn
from grn.edges.edge_table import open_reference_file

NETWORK = "source,target,weight,cell_type\nA,B,3,a\nA,C,-2,a\nB,C,1,b\n"
REFERENCE = "source,target,sign,cell_type\nA,B,1,a\nA,C,-1,a\nB,C,1,b\n"


def row(printed: str, name: str) -> list[str]:
    return next(
        line.removeprefix(name).split() for line in printed.splitlines() if line.startswith(name)
    )


def test_tables_and_a_figure_are_written_and_never_over_others(command):
    Path("network.csv").write_text(NETWORK)
    Path("reference.csv").write_text(REFERENCE)
    call = "evaluate", "network.csv", "reference.csv", "--output", "found"
    code, printed, error = command(*call)
    assert (code, error) == (0, "")
    expected = grn.evaluate("network.csv", "reference.csv")
    assert printed.splitlines()[0] == expected.attrs["notes"][0]
    assert row(printed, "sign accuracy on true edges")[0] == "1"
    table = pd.read_csv("found/evaluation.csv", index_col="score")
    pd.testing.assert_frame_equal(table, expected)
    types = pd.read_csv("found/evaluation_types.csv")
    pd.testing.assert_frame_equal(
        types, pd.DataFrame(expected.attrs["cell_types"]), check_dtype=False
    )
    files = {path.name: path.read_bytes() for path in Path("found").iterdir()}
    assert {"evaluation.txt", "precision_recall.png"} < set(files)
    assert command(*call)[0] == 2
    assert files == {path.name: path.read_bytes() for path in Path("found").iterdir()}


def test_the_cells_of_a_run_are_read_unless_the_user_says_none(command, tiny_run):
    call = "evaluate", tiny_run, tiny_run / "truth.csv"
    assert row(command(*call)[1], "score") == ["network", "p", "Pearson", "ridge"]
    assert row(command(*call, "--data", "none")[1], "score") == ["network", "p"]


@pytest.mark.skipif("GRN_BENCHMARK_DATA" not in os.environ, reason="GRN_BENCHMARK_DATA is not set")
def test_sergio_s_published_numbers(command):
    """The baselines of the project's design: 990 pairs, 258 true edges; Pearson and ridge 0.54 and
    0.52.
    """
    data = Path(os.environ["GRN_BENCHMARK_DATA"])
    truth = data / "sergio_ds1_network.csv"
    perfect = open_reference_file(truth).edges.rename(columns={"sign": "weight"})
    perfect.to_csv("perfect.csv", index=False)
    _, printed, _ = command("evaluate", "perfect.csv", truth, "--data", data / "sergio_ds1.h5ad")
    universe = "990 pairs; K = 258 true edges (179 +, 79 -, 0 of unknown sign), density 0.2606."
    assert universe in printed
    perfect, _, *baselines = map(float, row(printed, "AUPRC (average precision)"))
    assert perfect == 1 and baselines == pytest.approx([0.54, 0.52], abs=0.005)
