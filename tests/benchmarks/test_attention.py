"""The attention benchmark on a CPU: its files, its arithmetic, its messages. Times are not tested."""

from __future__ import annotations

import math
from functools import partial

import attention
import pandas as pd
import pytest
import torch
from attention_parts import accuracy, clock, dense, drawing, methods, packed, plan, tables

from flashsign import BackendUnavailable
from flashsign.reference import reference_spherical_attention

CPU = torch.device("cpu")
RATES = clock.Rates({"fp16": 700.0, "bf16": 700.0}, 4.0)
SMOKE = ["--device", "cpu", "--backend", "torch", "--smoke", "--budget-s", "0.001"]


def planned(*options: str) -> plan.Plan:
    return plan.Plan.of(attention.parsed([*SMOKE, "--output", "unused", *options]))


def rows(point: plan.Point, *options: str) -> tuple[list[dense.Row], dict[str, str]]:
    chosen = planned(*options)
    return dense.rows_at(point, chosen, chosen.methods_at(point), "torch", CPU, RATES)


@pytest.fixture
def fake() -> pd.DataFrame:
    """A table as of a GPU: two sizes that 16 divides and one that it does not; one method ran out of memory."""
    found = []
    for name, ms in (("eager", 8.0), ("flash", 4.0), ("cudnn", 2.0), ("stream", 1.0)):
        for size in (2048, 8191, 41472):
            for direction in plan.DIRECTIONS:
                row = {"method": methods.METHODS[name].name, "N": size, "E": 128, "dtype": "fp16"}
                row |= {"direction": direction, "ms": ms, "tflops": 600 / ms, "memory_mib": size / 100, "status": "ok"}
                row |= {"ratio_cudnn": 2 / ms, "ratio_flash": 4 / ms, "ratio_eager": 8 / ms, "matmul_tflops": 700.0}
                row |= {"within_001": 0.9999, "relative_error": 3e-4}
                found.append({column: row.get(column, math.nan) for column in dense.COLUMNS})
    table = pd.DataFrame(found)
    lost = (table["method"] == methods.METHODS["eager"].name) & (table["N"] == 41472)
    table.loc[lost, ["ms", "tflops", "memory_mib", "ratio_cudnn"]] = math.nan
    table.loc[lost, "status"] = "OOM"
    return table


def test_the_smoke_run_writes_every_part(tmp_path, capsys):
    parts = ["--dense", "--packed", "--small", "--output", str(tmp_path)]
    chosen = ["--dtypes", "fp16", "--directions", "both", "--methods", "eager", "cudnn", "stream"]
    attention.main([*SMOKE, *parts, *chosen])
    table = pd.read_csv(tmp_path / "attention.csv")
    assert tuple(table.columns) == dense.COLUMNS
    assert set(table["direction"]) == {"both"} and set(table["N"]) == {32, 33}
    ours = table[table["method"] == "flashsign stream"]
    assert (ours["status"] == "ok").all() and (ours["within_001"] > 0.99).all() and (ours["runs"] >= 10).all()
    assert table.loc[table["method"] == "SDPA cuDNN", "status"].str.startswith("failed").all()
    assert (tmp_path / "attention.png").stat().st_size > 1000
    rates = pd.read_csv(tmp_path / "attention_packed.csv")
    assert (rates.loc[rates["layout"] == "equal, dense", "ratio"] == 1).all() and rates["ratio"].notna().all()
    assert len(pd.read_csv(tmp_path / "attention_small.csv")) == 2 * 4
    printed = capsys.readouterr().out
    assert "FlexAttention: no column" in printed and "SDPA cuDNN at N = 32" in printed


def test_operations_of_a_point():
    assert plan.operations("forward", 10, 20, 4, heads=3) == 4 * 10 * 20 * 4 * 3
    parts = [plan.operations(direction, 10, 20, 4) for direction in ("forward", "backward")]
    assert plan.operations("both", 10, 20, 4) == sum(parts) and parts[1] == 2.5 * parts[0]


def test_rates_and_ratios_come_from_the_times():
    found, _ = rows(plan.Point(32, 16, "fp16"), "--methods", "eager", "flash", "--directions", "forward")
    eager, flash = found
    assert eager["tflops"] == pytest.approx(4 * 32 * 32 * 16 * plan.HEADS / eager["ms"] / 1e9)
    assert eager["matmul_share"] == pytest.approx(eager["tflops"] / 700)
    assert flash["ratio_eager"] == pytest.approx(eager["ms"] / flash["ms"]) and flash["ratio_flash"] == 1
    assert math.isnan(flash["ratio_cudnn"]) and math.isnan(flash["within_001"])


def test_distance_of_a_known_error():
    reference = torch.tensor([3.0, 4.0, 0.0, 0.0], dtype=torch.float64)
    found = accuracy.distance(reference + torch.tensor([0.0, 0.0, 0.009, 0.02]), reference)
    assert found["within_001"] == 0.75
    assert found["relative_error"] == pytest.approx(math.hypot(0.009, 0.02) / 5, rel=1e-6)


def test_the_reference_is_that_of_the_sampled_rows():
    inputs = methods.Inputs.draw((1, 2, 300, 8), (1, 300), "fp16", CPU)
    exact = reference_spherical_attention(*(x.detach().double() for x in inputs[:4]))
    found = accuracy.accuracy(exact, inputs, methods.EPS)
    assert found["within_001"] == 1 and found["relative_error"] < 1e-12
    exact[0, -1] += 1
    assert accuracy.accuracy(exact, inputs, methods.EPS)["within_001"] == 0


@pytest.mark.parametrize("attend", [methods.materialised, methods.materialised_weights])
def test_the_materialised_forms_are_spherical_attention(attend):
    q, k, v, m, _ = (x.detach().double() for x in methods.Inputs.draw((2, 3, 20, 8), (2, 20), "fp16", CPU))
    torch.testing.assert_close(attend(q, k, v, m), reference_spherical_attention(q, k, v, m, eps=0))


@pytest.mark.parametrize("direction", plan.DIRECTIONS)
def test_every_direction_can_be_called_again(direction):
    inputs = methods.Inputs.draw((1, 2, 20, 8), (1, 20), "fp16", CPU)
    call = methods.call_of(methods.materialised, inputs, direction)
    first, second = call(), call()
    torch.testing.assert_close(first, second)
    assert inputs.q.grad is None and (direction != "forward" or not first.requires_grad)


def test_a_failure_gives_its_reason():
    def raises(error):
        raise error

    def status(error):
        return methods.attempt(partial(raises, error), CPU)[1]

    assert methods.attempt(lambda: 3, CPU) == (3, "ok")
    assert status(torch.OutOfMemoryError("CUDA out of memory")) == "OOM"
    assert status(BackendUnavailable("no kernel")) == "unavailable: no kernel"
    assert status(RuntimeError("first\nsecond")) == "failed: RuntimeError: first"
    with pytest.raises(torch.AcceleratorError):
        status(torch.AcceleratorError("an illegal memory access", 700))


def test_a_missing_backend_is_a_remark_and_no_row(monkeypatch):
    def unavailable(*_, **__):
        raise BackendUnavailable("no kernel")

    monkeypatch.setattr(methods, "spherical_attention", unavailable)
    found, failed = rows(plan.Point(32, 16, "fp16"), "--methods", "stream", "eager", "--directions", "both")
    assert [row["method"] for row in found] == ["spherical torch eager"]
    assert failed == {"stream": "unavailable: no kernel"}


def test_running_out_of_memory_is_a_row(monkeypatch):
    def too_large(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(methods, "materialised", too_large)
    found, failed = rows(plan.Point(32, 16, "fp16"), "--methods", "eager", "flash", "--directions", "both")
    assert [row["status"] for row in found] == ["OOM", "ok"] and not failed
    assert "OOM" in tables.line(found[0]) and "nan" not in tables.line(found[0])


@pytest.mark.parametrize(("ms", "expected"), [(0.01, (100, 100)), (10, (16, 33)), (400, (5, 10))])
def test_runs_that_fit_the_budget(ms, expected):
    assert clock.run_counts(ms, budget_s=0.5) == expected


def test_the_default_run_fits_eight_minutes():
    default = plan.Plan.of(attention.parsed(["--device", "cpu"]))
    assert 60 < plan.estimate(default) < 480
    few = {point.size for point in default.points() if "compile" in default.methods_at(point)}
    assert few == set(plan.FEW["compile"])
    assert "weights" in planned("--methods", "weights", "--sizes", "32").methods_at(plan.Point(32, 16, "fp16"))


def test_equal_bags_do_the_work_of_uneven_ones():
    for kind in ("lognormal", "uniform"):
        sizes = packed.bag_sizes(kind)
        assert len(sizes) == packed.BAGS and sizes.min() >= 200 and sizes.max() <= 5000 and len(sizes.unique()) > 10
        assert torch.equal(sizes, packed.bag_sizes(kind))
        equal = packed.equal_sizes(sizes)
        assert equal.square().sum() == pytest.approx(int(sizes.square().sum()), rel=1e-3)


def test_the_published_numbers_stand_beside_ours(fake):
    text = tables.claims(fake)
    assert "99.990 %" in text and "0.95      4.00      4.00      4.00" in text and "nan" not in text
    assert "was not measured at N = 41472, E = 64" in tables.claims(fake, width=64)


def test_the_picture_is_drawn_from_a_file(fake, tmp_path):
    fake.to_csv(tmp_path / "attention.csv", index=False)
    attention.main(["--from-csv", str(tmp_path / "attention.csv"), "--picture", str(tmp_path / "again.png")])
    assert (tmp_path / "again.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_has_a_line_for_every_method(fake):
    picture = drawing.curves(fake)
    assert len(picture.axes) == len(drawing.PANELS)
    labels = {text.get_text() for text in picture.legends[0].get_texts()}
    assert labels == {*fake["method"].unique(), drawing.CEILING, drawing.HOLLOW}
    assert set(drawing.LINES) <= {method.name for method in methods.METHODS.values()}
