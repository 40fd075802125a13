"""A short version of benchmarks/kill.py: runs that are killed, or meet a full disk, end as one that was left alone."""

from __future__ import annotations

from kill import kill


def test_killed_runs_end_as_one_that_was_left_alone(tmp_path):
    assert kill(tmp_path, trials=4) == ["same"] * 4
