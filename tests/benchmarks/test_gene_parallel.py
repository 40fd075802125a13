"""The benchmark of gene parallelism in a group of one process on a CPU. Two processes: tests/training."""

from __future__ import annotations

import gene_parallel
import pandas as pd
import pytest
import torch
from gene_parallel_parts import agree
from torch import distributed

CPU = torch.device("cpu")


@pytest.fixture
def group():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", agree.TOLERANCES)
def test_attention_is_compared_with_one_device_in_float64(group, packed, dtype):
    found = agree.errors(agree.Case(packed, dtype, genes=20, width=8), group, CPU)
    assert list(found) == list(agree.NAMES)
    assert 0 < max(found.values()) <= agree.TOLERANCES[dtype]


def test_a_wrong_answer_is_a_complaint(group, monkeypatch):
    """With a group, later genes get larger multiplicities."""
    real = agree.spherical_attention

    def wrong(q, k, v, m, *, group=None, **more):
        return real(q, k, v, m if group is None else m * torch.linspace(1, 2, m.shape[-1]), group=group, **more)

    monkeypatch.setattr(agree, "spherical_attention", wrong)
    reported: list[str] = []
    complaints = agree.attention_agrees(20, group, CPU, reported.append)
    assert len(complaints) == len(reported) - 1 == 6 and all("NOT WITHIN" in line for line in reported[1:])


def test_training_is_compared_step_by_step(group, monkeypatch):
    monkeypatch.setattr(agree, "STEPS", 2)
    reported: list[str] = []
    points = [gene_parallel.point_of("packed", 40, "all", 3)]
    assert agree.training_agrees(points, group, CPU, reported.append) == []
    assert "within" in reported[1]


def test_the_smoke_run_writes_the_table(monkeypatch, tmp_path, capsys):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "0")
    gene_parallel.main(["--device", "cpu", "--smoke", "--only", "speed", "--output", str(tmp_path)])
    table = pd.read_csv(tmp_path / "gene_parallel.csv")
    assert list(table.columns) == list(gene_parallel.COLUMNS)
    assert set(table["bags"]) == {"dense", "packed"} and set(table["keys"]) == {"5 %", "all"}
    assert (table["s_per_step"] > 0).all() and (table["collectives"] == "gloo").all()
    assert "speed-up" in capsys.readouterr().out


def test_without_torchrun_it_names_torchrun(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit, match="torchrun"):
        gene_parallel.main(["--device", "cpu", "--smoke"])


def test_full_sizes_need_gpus(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit, match="--smoke"):
        gene_parallel.main(["--device", "cpu"])
