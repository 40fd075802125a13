"""The training benchmarks on a CPU: their cells, steps and attentions, and gene parallelism in one process."""

from __future__ import annotations

import gene_parallel
import lightning as L
import pandas as pd
import pytest
import torch
import training
import training_steps as steps
from torch import distributed
from torch.nn.functional import scaled_dot_product_attention

import grn.model.transformer
from flashsign import spherical_attention

CPU = torch.device("cpu")


SMOKE = ["--device", "cpu", "--smoke", "--budget-s", "0.001"]


def tiny(bags: str = "packed", keys: str = "5 %", genes: int = 40) -> steps.Point:
    return steps.Point.of(bags, genes, keys, cells=3, vocabulary=80)


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
    found = steps.Softmax()(q, k, v, torch.rand(2, 7), eps=1e-6)
    torch.testing.assert_close(found, scaled_dot_product_attention(q, k, v, enable_gqa=True))
    one = softmax(*(x[1].transpose(0, 1) for x in (q, k, v)))
    torch.testing.assert_close(found[1].transpose(0, 1), one)


def test_packed_softmax_pads_with_keys_of_zeros():
    """Exact for the longest bag; the others have keys of zeros besides. Gradients are those of the same in torch."""
    q, k, v = leaves = heads(5, 9, 9)
    found = steps.Softmax()(q, k, v, torch.rand(9), offsets=starts(3, 6), query_offsets=starts(4, 1))
    zeros = k.new_zeros(3, 2, 8)
    first = softmax(q[:4], torch.cat([k[:3], zeros]), torch.cat([v[:3], zeros]))
    expected = torch.cat([first, softmax(q[4:], k[3:], v[3:])])
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad((output * weight).sum(), leaves) for output in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_the_steps_are_those_of_the_trainer():
    point = tiny("dense")
    made = steps.batches(point, 3)
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


def test_a_trace_names_the_kernels_that_did_not_run(capsys, monkeypatch):
    for path in ("stream", "moments"):
        wanted = training.LAUNCHED[path]
        assert training.fraction(dict.fromkeys(wanted, 1.0) | {"ampere_gemm": 5.0}, wanted) == (0.5, [])
        assert training.fraction({"ampere_gemm": 1.0}, wanted) == (0, list(wanted))
    # Which operations take longest depends on the machine: list all of them.
    monkeypatch.setattr(training, "SHOWN", 1000)
    training.main([*SMOKE, "--trace"])
    assert "aten::mm" in capsys.readouterr().out


def test_agreement_is_checked(capsys, monkeypatch):
    training.main([*SMOKE, "--agree", "--keys", "regulators"])
    assert capsys.readouterr().out.count("within") == 4
    monkeypatch.setitem(training.TOLERANCES, "bf16-mixed", 1e-9)
    with pytest.raises(SystemExit, match="bf16-mixed"):
        training.main([*SMOKE, "--agree", "--keys", "regulators", "--bags", "packed"])


CPU = torch.device("cpu")


@pytest.fixture
def group():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", gene_parallel.TOLERANCES)
def test_attention_is_compared_with_one_device_in_float64(group, packed, dtype):
    found = gene_parallel.errors(gene_parallel.Case(packed, dtype, genes=20, width=8), group, CPU)
    assert list(found) == list(gene_parallel.NAMES)
    assert 0 < max(found.values()) <= gene_parallel.TOLERANCES[dtype]


def test_a_wrong_answer_is_a_complaint(group, monkeypatch):
    """With a group, later genes get larger multiplicities."""
    real = gene_parallel.spherical_attention

    def wrong(q, k, v, m, *, group=None, **more):
        return real(q, k, v, m if group is None else m * torch.linspace(1, 2, m.shape[-1]), group=group, **more)

    monkeypatch.setattr(gene_parallel, "spherical_attention", wrong)
    reported: list[str] = []
    complaints = gene_parallel.attention_agrees(20, group, CPU, reported.append)
    assert len(complaints) == len(reported) - 1 == 6 and all("NOT WITHIN" in line for line in reported[1:])


def test_training_is_compared_step_by_step(group, monkeypatch):
    monkeypatch.setattr(gene_parallel, "STEPS", 2)
    reported: list[str] = []
    points = [gene_parallel.point_of("packed", 40, "all", 3)]
    assert gene_parallel.training_agrees(points, group, CPU, reported.append) == []
    assert "within" in reported[1]


def test_the_smoke_run_of_gene_parallelism_writes_the_table(monkeypatch, tmp_path, capsys):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "0")
    gene_parallel.main(["--device", "cpu", "--smoke", "--only", "speed", "--output", str(tmp_path)])
    table = pd.read_csv(tmp_path / "gene_parallel.csv")
    assert list(table.columns) == list(gene_parallel.COLUMNS)
    assert set(table["bags"]) == {"dense", "packed"} and set(table["keys"]) == {"5 %", "all"}
    assert (table["s_per_step"] > 0).all() and (table["collectives"] == "gloo").all()
    assert "speed-up" in capsys.readouterr().out
