"""The benchmark of edge sums on a CPU, in Triton's interpreter. Times are not tested."""

from __future__ import annotations

import edges
import pandas as pd
import pytest
import torch

pytest.importorskip("triton")
SMOKE = ["--smoke", "--device", "cpu", "--widths", "16", "--dtypes", "float32", "--runs", "1", "--cells", "1"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here; this run is on the CPU")
def test_the_smoke_run_writes_the_table_and_adds_to_it(tmp_path):
    edges.main([*SMOKE, "--methods", "torch", "materialised", "--output", str(tmp_path)])
    edges.main([*SMOKE, "--methods", "kernel", "kernel signed", "--output", str(tmp_path)])
    table = pd.read_csv(tmp_path / "edges.csv")
    assert list(table.columns) == list(edges.COLUMNS)
    assert (table["status"] == "ok").all() and (table["ms_per_cell"] > 0).all()
    assert list(table["method"]) == 2 * list(edges.METHODS)
    assert (table.loc[table["method"] != "materialised", "error"] < 1e-6).all()


def test_what_is_too_far_from_float64_is_a_failure(tmp_path, monkeypatch):
    right = edges.fold

    def wrong(*call):
        sums = right(*call)
        sums.signed[0] *= 1.1
        return sums

    monkeypatch.setattr(edges, "fold", wrong)
    with pytest.raises(SystemExit, match="Too far from float64"):
        edges.main([*SMOKE, "--methods", "torch", "--output", str(tmp_path)])


def test_full_sizes_need_a_gpu():
    with pytest.raises(SystemExit, match="need a GPU"):
        edges.main(["--device", "cpu"])
