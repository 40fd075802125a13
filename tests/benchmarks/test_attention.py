"""The benchmarks of attention on a CPU: files, arithmetic, rows. Times are not tested."""

from __future__ import annotations

import attention
import pandas as pd
import torch
from attention_parts import dense, methods

from flashsign.attention.reference import reference_spherical_attention

CPU = torch.device("cpu")


SMOKE = ["--device", "cpu", "--backend", "torch", "--smoke", "--budget-s", "0.001"]


def test_the_smoke_run_writes_every_part(tmp_path, capsys):
    parts = ["--dense", "--packed", "--small", "--output", str(tmp_path)]
    chosen = ["--dtypes", "fp16", "--directions", "both", "--methods", "eager", "cudnn", "stream"]
    attention.main([*SMOKE, *parts, *chosen])
    table = pd.read_csv(tmp_path / "attention.csv")
    assert tuple(table.columns) == dense.COLUMNS
    assert set(table["direction"]) == {"both"} and set(table["N"]) == {32, 33}
    ours = table[table["method"] == "flashsign stream"]
    assert (
        (ours["status"] == "ok").all()
        and (ours["within_001"] > 0.99).all()
        and (ours["runs"] >= 10).all()
    )
    assert table.loc[table["method"] == "SDPA cuDNN", "status"].str.startswith("failed").all()
    assert (tmp_path / "attention.png").stat().st_size > 1000
    rates = pd.read_csv(tmp_path / "attention_packed.csv")
    assert (rates.loc[rates["layout"] == "equal, dense", "ratio"] == 1).all() and rates[
        "ratio"
    ].notna().all()
    assert len(pd.read_csv(tmp_path / "attention_small.csv")) == 2 * 4
    printed = capsys.readouterr().out
    assert "FlexAttention: no column" in printed and "SDPA cuDNN at N = 32" in printed


def test_the_materialised_form_is_spherical_attention():
    q, k, v, m, _ = (
        x.detach().double() for x in methods.Inputs.draw((2, 3, 20, 8), (2, 20), "fp16", CPU)
    )
    expected = reference_spherical_attention(q, k, v, m, eps=0)
    torch.testing.assert_close(methods.materialised(q, k, v, m), expected)
