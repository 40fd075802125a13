"""Only the known messages are silenced, and only inside the context."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings

import pytest

from grn.training.machine import quiet

NOISE = [
    "Experiment logs directory runs/x/ exists and is not empty. Previous log files in this directory will be deleted",
    "The number of training batches (15) is smaller than the logging interval Trainer(log_every_n_steps=50).",
    "`isinstance(treespec, LeafSpec)` is deprecated, use `isinstance(treespec, TreeSpec)` instead.",
    "The 'train_dataloader' does not have many workers which may be a bottleneck.",
    "It is recommended to use `self.log('loss', ..., sync_dist=True)` when logging on epoch level.",
]


@pytest.mark.parametrize("message", NOISE)
def test_known_noise_is_silenced_inside_only(message):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with quiet():
            warnings.warn(message, stacklevel=1)
        assert caught == []
        warnings.warn(message, stacklevel=1)
        assert len(caught) == 1


def test_other_warnings_come_through():
    with pytest.warns(UserWarning, match="the disk is nearly full"), quiet():
        warnings.warn("the disk is nearly full", stacklevel=1)


def test_lightnings_log_keeps_its_warnings_and_gets_its_level_back():
    logger = logging.getLogger("lightning.pytorch")
    before = logger.level
    with pytest.raises(KeyError), quiet():
        assert not logger.isEnabledFor(logging.INFO)
        assert logger.isEnabledFor(logging.WARNING)
        raise KeyError
    assert logger.level == before


def test_a_whole_run_prints_our_lines_only(tmp_path):
    fields = {
        "trainer.max_steps": 4,
        "trainer.validate_every": 2,
        "trainer.accelerator": "cpu",
        "data.simulated.cells": 80,
        "model.width": 16,
        "network.cells": 10,
        "regulation.steps": 20,
        "cell_reader.steps": 10,
    }
    changes = [part for name, value in fields.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "grn", "train", "--config", "simulated.yaml", "--output", str(tmp_path), *changes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("80 cells x 120 genes")
    for noise in ("available", "Tip", "weights_only", "stopped: `", "Warning"):
        assert noise not in done.stdout
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert "Strongest up-regulations" in done.stdout and "F1 of the cell types" in done.stdout
