"""The benchmark of folds on a CPU: every layer has a row for each method, and its errors are small."""

from __future__ import annotations

import folds
import pandas as pd
import pytest

pytest.importorskip("triton")
SMOKE = ["--smoke", "--device", "cpu"]


@pytest.mark.slow
def test_every_method_has_a_row_and_small_errors(tmp_path):
    folds.main([*SMOKE, "--budget-s", "0.001", "--backend", "torch", "--output", str(tmp_path)])
    table = pd.read_csv(tmp_path / "folds.csv")
    assert set(table["status"]) == {"ok"}
    assert set(table["layer"]) >= {"linear cross entropy", "two distributions", "listed weights", "MLP", "RMSNorm"}
    ours = table[(table["method"] == "flashsign")]
    assert (ours["error"] < 0.01).all() and (ours["gradient_error"] < 0.01).all()
    assert (table["runs"] >= 10).all() and (table["warmups"] >= 5).all()
    assert (tmp_path / "folds.png").stat().st_size > 1000


def test_full_sizes_need_a_gpu():
    with pytest.raises(SystemExit, match="Full sizes need a GPU"):
        folds.main(["--device", "cpu"])


@pytest.mark.slow
def test_block_sizes_are_checked(tmp_path):
    with pytest.raises(SystemExit) as end:
        folds.main([*SMOKE, "--tiles", "--output", str(tmp_path)])
    assert end.value.code == 0
    table = pd.read_csv(tmp_path / "fold_tiles.csv")
    assert table["good"].all() and set(table["kernel"]) > {"mlp_forward", "class_totals", "attention"}
