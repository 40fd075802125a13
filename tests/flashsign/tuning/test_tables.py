"""Block sizes of a launch, on GPUs that are not here; measured times against the choice."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from flashsign.tuning import choose, tables
from flashsign.tuning.choose import choose_block_sizes
from flashsign.tuning.costs import faster

H200, A100, RTX = (
    (132, 232448),
    (108, 166912),
    (128, 101376),
)  # multiprocessors, bytes of shared memory for a program


@pytest.fixture
def gpu(monkeypatch):
    return lambda limits: monkeypatch.setattr(choose, "device_limits", lambda device: limits)


def chosen(name, rows, width, dtype=torch.float16):
    return choose_block_sizes(
        name, torch.empty(1, 8, rows, width, dtype=dtype, device="meta"), width
    )


def test_long_bags_take_the_tallest_tiles_and_short_ones_fill_the_device(gpu):
    gpu(H200)
    tall, short = tables.TABLES["forward"][2, 128]
    assert chosen("forward", 8192, 128) == tall
    assert chosen("forward", 2048, 128) == short


@pytest.mark.parametrize("name", tables.TABLES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("limits", [H200, A100, RTX])
def test_no_block_sizes_need_more_shared_memory_than_there_is(gpu, name, dtype, limits):
    gpu(limits)
    for size, width in tables.TABLES[name]:
        if size == dtype.itemsize:
            sizes = chosen(name, 100_000, width, dtype)
            fits = sizes.shared(tables.KEPT[name], width * size, size) <= limits[1]
            assert fits or sizes == tables.SMALLEST


MEASURED = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "crossing.csv"


def test_the_choice_is_near_the_faster_one_at_every_measured_point():
    table = pd.read_csv(MEASURED)
    assert len(table) > 100
    for row in table.itertuples():
        size = {"float16": 2, "float32": 4}[row.dtype]
        gradients = row.direction == "both"
        sizes = (row.bags, row.heads, row.key_heads, row.genes, row.genes)
        choice = faster(size, row.width, *sizes, gradients, row.packed)
        taken, best = getattr(row, f"{choice}_us"), min(row.stream_us, row.moments_us)
        assert taken <= max(1.1 * best, best + 5), row
