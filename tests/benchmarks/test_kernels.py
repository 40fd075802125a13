"""The benchmarks of kernels on a CPU: folds and edge sums. Times are not tested."""

from __future__ import annotations

import edges
import folds
import pandas as pd
import pytest
import torch

pytest.importorskip("triton")


SMOKE = ["--smoke", "--device", "cpu"]


@pytest.mark.slow
def test_every_method_has_a_row_and_small_errors(tmp_path):
    folds.main([*SMOKE, "--budget-s", "0.001", "--backend", "torch", "--output", str(tmp_path)])
    table = pd.read_csv(tmp_path / "folds.csv")
    assert set(table["status"]) == {"ok"}
    assert set(table["layer"]) >= {
        "linear cross entropy",
        "two distributions",
        "listed weights",
        "MLP",
        "RMSNorm",
    }
    ours = table[(table["method"] == "flashsign")]
    assert (ours["error"] < 0.01).all() and (ours["gradient_error"] < 0.01).all()
    assert (table["runs"] >= 10).all() and (table["warmups"] >= 5).all()
    assert (tmp_path / "folds.png").stat().st_size > 1000


@pytest.mark.slow
def test_block_sizes_are_checked(tmp_path):
    with pytest.raises(SystemExit) as end:
        folds.main([*SMOKE, "--tiles", "--output", str(tmp_path)])
    assert end.value.code == 0
    table = pd.read_csv(tmp_path / "fold_tiles.csv")
    assert table["good"].all() and set(table["kernel"]) > {
        "mlp_forward",
        "class_totals",
        "attention",
    }


EDGES = [*SMOKE, "--widths", "16", "--dtypes", "float32", "--budget-s", "0.001", "--cells", "1"]


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled here; this run is on the CPU"
)
def test_the_smoke_run_writes_the_table_and_adds_to_it(tmp_path):
    edges.main([*EDGES, "--methods", "torch", "materialised", "--output", str(tmp_path)])
    edges.main([*EDGES, "--methods", "kernel", "kernel signed", "--output", str(tmp_path)])
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
        edges.main([*EDGES, "--methods", "torch", "--output", str(tmp_path)])
