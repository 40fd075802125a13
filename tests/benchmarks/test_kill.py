"""A short version of benchmarks/kill.py: runs that are killed, or meet a full disk, end as one that was left alone."""

from __future__ import annotations

import pytest
from kill import kill, small_disks


def test_killed_runs_end_as_one_that_was_left_alone(tmp_path):
    assert kill(tmp_path, trials=2) == ["same"] * 2


def test_a_run_on_a_disk_that_fills_up_ends_as_one_that_was_left_alone(tmp_path):
    (found,) = small_disks(tmp_path, 1)
    if found.startswith("skipped"):
        pytest.skip(found)
    assert found == "same"
