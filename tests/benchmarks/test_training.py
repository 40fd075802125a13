"""The training benchmark on a CPU: its cells, its steps, softmax instead of flashsign. Times are not tested."""

from __future__ import annotations

import math
from pathlib import Path

import lightning as L
import pandas as pd
import pytest
import torch
import training
from torch.nn.functional import scaled_dot_product_attention
from training_parts import agree, cells, drawing, methods, steps, trace, whole

import grn.model.transformer
from flashsign import spherical_attention
from flashsign.dispatch import Device

CPU = torch.device("cpu")
SMOKE = ["--device", "cpu", "--smoke", "--budget-s", "0.001"]


def tiny(bags: str = "packed", keys: str = "5 %", genes: int = 40) -> cells.Point:
    return cells.Point.of(bags, genes, keys, cells=3, vocabulary=80)


def heads(*rows: int, seed: int = 0) -> list[torch.Tensor]:
    """q, k, v with so many rows each, packed: 4 query heads, 2 key heads, width 8."""
    random = torch.Generator().manual_seed(seed)
    found = zip(rows, (4, 2, 2), strict=True)
    return [
        torch.randn(count, head, 8, generator=random, dtype=torch.float64).requires_grad_() for count, head in found
    ]


def softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Softmax attention of one packed bag, as the formula is written."""
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    scores = torch.einsum("ihe,jhe->hij", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("hij,jhe->ihe", scores.softmax(-1), v)


def starts(*sizes: int) -> torch.Tensor:
    return torch.tensor([0, *sizes]).cumsum(0)


def test_the_smoke_run_writes_the_table(tmp_path, capsys):
    training.main([*SMOKE, "--keys", "regulators", "--output", str(tmp_path)])
    table = pd.read_csv(tmp_path / "training.csv")
    assert list(table.columns) == list(training.COLUMNS)
    good = table[table["status"] == "ok"]
    assert set(good["bags"]) == {"dense", "packed"} and set(good["method"]) == {"flashsign", "SDPA"}
    assert (good["steps"] >= 20).all() and (good["cells_per_s"] > 0).all() and (good["kernel"] != "").all()
    assert (good.loc[good["method"] == "SDPA", "ratio_sdpa"] == 1).all()
    assert "failed" in capsys.readouterr().out  # cuDNN does not run on a CPU; the other methods run all the same
    assert grn.model.transformer.spherical_attention is spherical_attention


def test_dense_softmax_is_that_of_torch():
    q, k, v = (x.unflatten(0, (2, -1)).transpose(1, 2) for x in heads(10, 14, 14))
    found = methods.Softmax()(q, k, v, torch.rand(2, 7), eps=1e-6)
    torch.testing.assert_close(found, scaled_dot_product_attention(q, k, v, enable_gqa=True))
    one = softmax(*(x[1].transpose(0, 1) for x in (q, k, v)))
    torch.testing.assert_close(found[1].transpose(0, 1), one)


def test_packed_softmax_pads_with_keys_of_zeros():
    """Exact for the longest bag; the others have keys of zeros besides. Gradients are those of the same in torch."""
    q, k, v = leaves = heads(5, 9, 9)
    found = methods.Softmax()(q, k, v, torch.rand(9), offsets=starts(3, 6), query_offsets=starts(4, 1))
    zeros = k.new_zeros(3, 2, 8)
    first = softmax(q[:4], torch.cat([k[:3], zeros]), torch.cat([v[:3], zeros]))
    expected = torch.cat([first, softmax(q[4:], k[3:], v[3:])])
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad((output * weight).sum(), leaves) for output in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_varlen_hands_over_the_bags_as_they_are(monkeypatch):
    def varlen_attn(q, k, v, query_starts, key_starts, most_queries, most_keys, enable_gqa=False):
        assert enable_gqa and query_starts.dtype == key_starts.dtype == torch.int32
        assert (most_queries, most_keys) == (4, 6)
        bags = [
            softmax(q[a:b], k[c:d], v[c:d])
            for a, b, c, d in zip(query_starts, query_starts[1:], key_starts, key_starts[1:], strict=False)
        ]
        return torch.cat(bags)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    q, k, v = heads(5, 9, 9)
    found = methods.Varlen()(q, k, v, None, offsets=starts(3, 6), query_offsets=starts(4, 1))
    torch.testing.assert_close(found, torch.cat([softmax(q[:4], k[:3], v[:3]), softmax(q[4:], k[3:], v[3:])]))


def test_a_forced_backend_that_wants_all_key_heads_gets_them(monkeypatch):
    def stub(q, k, v, enable_gqa=False):
        if enable_gqa:
            raise RuntimeError("No available kernel. Aborting execution.")
        return scaled_dot_product_attention(q, k, v)

    monkeypatch.setattr(methods, "scaled_dot_product_attention", stub)
    q, k, v = (x.unflatten(0, (2, -1)).transpose(1, 2) for x in heads(10, 14, 14))
    attention = methods.Softmax(methods.SDPBackend.MATH)
    for _ in range(2):
        torch.testing.assert_close(attention(q, k, v), scaled_dot_product_attention(q, k, v, enable_gqa=True))
    assert attention.kernel == "MATH, keys repeated"
    with pytest.raises(RuntimeError):
        methods.Softmax()(q, k, v)


@pytest.mark.parametrize("bags", ["dense", "packed"])
@pytest.mark.parametrize("keys", ["5 %", "all"])
def test_the_model_trains_with_softmax_in_place(bags, keys):
    point = tiny(bags, keys)
    with methods.attending(methods.Softmax()) as _:
        run = steps.Training(point, cells.batches(point, 2), CPU, "32-true", dropout=0.0)
        softmax_losses = [float(run.step()) for _ in range(3)]
    run = steps.Training(point, cells.batches(point, 2), CPU, "32-true", dropout=0.0)
    spherical_losses = [float(run.step()) for _ in range(3)]
    assert softmax_losses[0] == spherical_losses[0], "predictions start at the mean, whatever the attention"
    assert softmax_losses[2] != spherical_losses[2]


def test_the_steps_are_those_of_the_trainer():
    point = tiny("dense")
    made = cells.batches(point, 3)
    run = steps.Training(point, made, CPU, "32-true", total=3, dropout=0.0)
    for _ in range(3):
        run.step()
    other = steps.Training(point, made, CPU, "32-true", total=3, dropout=0.0).task
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    L.Trainer(accelerator="cpu", max_steps=3, **quiet).fit(
        other, torch.utils.data.DataLoader(made, batch_size=None, shuffle=False)
    )
    assert dict(run.task.model.named_parameters()).keys() == dict(other.model.named_parameters()).keys()
    for ours, theirs in zip(run.task.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_cells_are_as_the_loader_would_make_them():
    point = cells.Point.of("packed", 1000, "5 %", cells=40, vocabulary=4000)
    batch, again = (cells.batches(point, 1, seed=3)[0] for _ in range(2))
    assert torch.equal(batch.bags.genes, again.bags.genes) and torch.equal(batch.multiplicity, again.multiplicity)
    sizes = batch.bags.offsets.diff()
    assert (
        750 < sizes.min() < 900
        and 1100 < sizes.max() < 1250
        and float(sizes.float().mean()) == pytest.approx(1000, 0.05)
    )
    chosen = cells.regulators(point, 3)
    assert len(chosen) == 200 and batch.bags.regulators.shape == (40, 200)
    read = torch.isin(batch.bags.genes, chosen).float().mean()
    assert float(read) == pytest.approx(0.05, abs=0.005)
    assert (batch.bags.multiplicity[batch.masked] == 0).all()
    assert torch.equal(batch.bags.multiplicity[~batch.masked], batch.multiplicity[~batch.masked])
    assert (batch.multiplicity[~batch.masked] > 0).all() and set(batch.importance.unique().tolist()) == {0.0, 1.0, 10.0}
    assert batch.multiplicity.shape == batch.masked.shape == batch.importance.shape == (int(sizes.sum()),)


def test_points_have_the_members_of_their_configuration():
    assert [tiny(*form).members for form in (("dense", "5 %"), ("dense", "all"), ("packed", "5 %"))] == [5, 0, 0]
    asked = training.points_of(training.parsed(["--device", "cpu"]), training.SIZES)
    assert len(asked) == 12 and {(point.genes, point.cells) for point in asked} == set(cells.CELLS.items())


def test_ratios_are_to_softmax():
    rates = {"flashsign": 300.0, "SDPA": 100.0, "SDPA cuDNN": 200.0, "varlen": math.nan}
    rows = training.with_ratios([{"method": name, "cells_per_s": rate} for name, rate in rates.items()])
    assert (rows[0]["ratio_sdpa"], rows[0]["ratio_fastest"]) == (3, 1.5)
    assert math.isnan(training.with_ratios([{"method": "flashsign", "cells_per_s": 1.0}])[0]["ratio_fastest"])


def test_methods_that_a_point_has():
    names = tuple(methods.METHODS)
    assert "varlen" not in methods.methods_at(names, "dense", "stream")
    assert "flashsign stream" in methods.methods_at(names, "dense", "moments")
    assert "flashsign stream" not in methods.methods_at(names, "packed", "stream")


def test_a_trace_names_the_kernels_that_did_not_run(capsys, monkeypatch):
    for path in ("stream", "moments"):
        wanted = trace.LAUNCHED[path]
        assert trace.fraction(dict.fromkeys(wanted, 1.0) | {"ampere_gemm": 5.0}, wanted) == (0.5, [])
        assert trace.fraction({"ampere_gemm": 1.0}, wanted) == (0, list(wanted))
    # Which operations take longest depends on the machine: list all of them.
    monkeypatch.setattr(trace, "SHOWN", 1000)
    training.main([*SMOKE, "--trace"])
    assert "aten::mm" in capsys.readouterr().out


def test_a_trace_looks_for_kernels_that_exist():
    pytest.importorskip("triton")
    folder = Path(trace.__file__).parents[2] / "kernels" / "flashsign" / "triton"
    source = "".join(file.read_text() for file in folder.rglob("*.py"))
    assert all(f"def {name}(" in source for name in trace.OURS)


def test_the_path_is_that_of_the_cells_and_keys_of_a_batch_in_training():
    h200 = Device("cuda", (9, 0), triton="3.6.0")
    found = {
        (bags, genes, keys): steps.flashsign_path(cells.Point.of(bags, genes, keys), "bf16-mixed", h200)
        for bags in ("dense", "packed") for genes in (2000, 20000) for keys in ("5 %", "all")
    }  # fmt: skip
    assert found.pop(("dense", 2000, "5 %")) == "stream" and set(found.values()) == {"moments"}
    assert steps.flashsign_path(cells.Point.of("dense", 2000, "all"), "32-true", CPU) == "torch"


def test_agreement_is_checked(capsys, monkeypatch):
    training.main([*SMOKE, "--agree", "--keys", "regulators"])
    assert capsys.readouterr().out.count("within") == 4
    monkeypatch.setitem(agree.TOLERANCES, "bf16-mixed", 1e-9)
    with pytest.raises(SystemExit, match="bf16-mixed"):
        training.main([*SMOKE, "--agree", "--keys", "regulators", "--bags", "packed"])


def test_whole_transcriptomes_write_a_table_of_their_own(tmp_path, capsys):
    asked = ["--whole", "genes", "--no-compile", "--methods", "flashsign", "SDPA"]
    training.main([*SMOKE, *asked, "--output", str(tmp_path)])
    table = pd.read_csv(tmp_path / "training_whole.csv")
    assert list(table.columns) == list(training.COLUMNS) and (table["status"] == "ok").all()
    assert set(table["genes"]) == {20, 40, 60} and not table["compiled"].any()
    assert not (tmp_path / "training.csv").exists()


def test_points_of_whole_transcriptomes_have_cells_of_one_size():
    found = whole.points_of_whole(list(whole.PARTS))
    assert {point.genes for point in found} == {20000, *whole.SERIES} and {point.bags for point in found} == {"packed"}
    assert {(point.model, point.keys) for point in found} == {(m, k) for m in cells.MODELS for k in ("all", "5 %")}
    tiny_point = whole.points_of_whole(["genes"], tiny=True)[1]
    sizes = cells.batches(tiny_point, 1)[0].bags.offsets.diff()
    assert float(sizes.float().std()) < 3 and abs(float(sizes.float().mean()) - 40) < 4


def test_the_summary_has_ratios_and_memory_per_gene():
    row = {"model": "default", "keys": "all", "cells": 8, "vocabulary": whole.SERIES_VOCABULARY}
    rows = [
        row | {"genes": genes, "method": method, "cells_per_s": rate, "memory_gib": 1 + genes * 8 / 2**20}
        for genes in (1000, 2000, 4000)
        for method, rate in (("flashsign", 900.0), ("SDPA cuDNN", 100.0))
    ]
    summary = whole.describe(rows)
    assert "default model, 2000 genes x 8 cells, all as keys: 9.00 x cuDNN's cells/s" in summary
    assert "flashsign, 8 cells: 1.00 GiB + 1.00 KiB per gene and cell, at most 0.0% of the largest value off" in summary


def test_the_picture_of_a_series(tmp_path):
    rows = [
        {"model": "default", "keys": "all", "cells": 8, "genes": genes, "method": method, "s_per_step": genes**power}
        for genes in (1000, 2000, 4000)
        for method, power in (("flashsign", 1), ("SDPA cuDNN", 2))
    ]
    table = pd.DataFrame(rows).assign(memory_gib=1.0, status="ok", device="D", precision="bf16-mixed", compiled=True)
    table = pd.concat([table, table.head(1).assign(cells=64, s_per_step=math.nan, status="OOM")])
    training.draw(table, tmp_path / "new" / "whole.png")
    assert (tmp_path / "new" / "whole.png").stat().st_size > 10000
    picture = drawing.against_genes(table.head(6))
    assert [len(line.get_xdata()) for line in picture.axes[0].lines] == [3, 3]
    assert set(drawing.LINES) <= set(methods.METHODS)
