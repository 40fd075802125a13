"""What `method="auto"` takes, against what was measured."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from flashsign import dispatch as kernel_attention
from flashsign.tuning.costs import faster

MEASURED = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "crossing.csv"


def test_the_choice_is_within_a_tenth_or_five_microseconds_of_the_faster_one_at_every_measured_point():
    table = pd.read_csv(MEASURED)
    assert len(table) > 100
    for row in table.itertuples():
        size = {"float16": 2, "float32": 4}[row.dtype]
        gradients = row.direction == "both"
        sizes = (row.bags, row.heads, row.key_heads, row.genes, row.genes)
        choice = faster(size, row.width, *sizes, gradients, row.packed)
        taken, best = getattr(row, f"{choice}_us"), min(row.stream_us, row.moments_us)
        assert taken <= max(1.1 * best, best + 5), row


@pytest.mark.parametrize(("packed", "genes", "expected"), [(False, 100, "stream"), (True, 20000, "moments")])
def test_the_mean_bag_decides(packed, genes, expected):
    shape = (3 * genes, 4, 32) if packed else (3, 4, genes, 32)
    q = torch.empty(shape, device="meta", dtype=torch.float16)
    assert kernel_attention.choose_method(q, q, 3, "auto") == expected


def test_heads_too_wide_for_moments_are_streamed():
    q = torch.empty(1, 1, 40000, 160, device="meta", dtype=torch.float16)
    assert kernel_attention.choose_method(q, q, 1, "auto") == "stream"
    assert kernel_attention.choose_method(q, q, 1, "moments") == "moments"
