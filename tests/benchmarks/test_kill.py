"""A short version of benchmarks/kill.py: runs that are killed, or meet a full disk, end as one that
was left alone.
"""

from __future__ import annotations

import subprocess
import sys

import kill


def test_stopped_runs_end_as_one_that_was_left_alone(tmp_path):
    """In a process of its own: a fork of one whose libraries have started threads may never end."""
    options = ["--trials", "2", "--small-disks", "1", "--temporary", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, kill.__file__, *options], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # same, or skipped
    assert "2  killed: same" in done.stdout and "1  small disk: s" in done.stdout
