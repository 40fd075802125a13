"""What `method="auto"` takes, against what was measured."""

from pathlib import Path

import pandas as pd

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
