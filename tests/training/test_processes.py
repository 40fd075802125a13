"""Two processes train as one process with the double batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

SMALL = ["data.simulated.cells=200", "data.simulated.genes=16", "data.simulated.regulators=4", "model.width=16"]
# Dropout is drawn by each process for itself; everything else (order, masks, initial values) is the same by design.
RUN = ["model.dropout=0", "trainer.max_steps=30", "trainer.validate_every=5", "network.cells=8"]
RUN += ["regulation.members=2", "regulation.steps=10", "cell_reader.steps=10", "network.false_discovery=false"]
CPU = "trainer.accelerator=cpu"


def losses(folder: Path, *overrides: str) -> pd.DataFrame:
    """Rows of metrics.csv by step, without what only the clock could change."""
    arguments = [part for field in (*SMALL, *RUN, CPU, *overrides) for part in ("--set", field)]
    command = [sys.executable, "-m", "grn", "train", "--config", "simulated.yaml", "--output", folder, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder.parent, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return pd.read_csv(folder / "metrics.csv").groupby("step").first().filter(regex="^(train|validation)/")


@pytest.mark.slow
def test_two_processes_train_to_the_losses_of_one_with_the_double_batch(tmp_path):
    one = losses(tmp_path / "one", "trainer.batch_size=32")
    two = losses(tmp_path / "two", "trainer.batch_size=16", "trainer.devices=2", "trainer.strategy=ddp")
    assert list(one.columns) == list(two.columns) and len(one) == len(two) >= 6
    assert one["train/loss"].max() - one["train/loss"].min() > 0.05  # the run went somewhere
    # float32 sums in another order, through 30 steps of AdamW.
    pd.testing.assert_frame_equal(one, two, rtol=1e-3, atol=1e-3)
