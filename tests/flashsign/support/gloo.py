"""Several processes of one machine in a gloo group: a test file that is run as a script is one of them.

process(rank, ranks, folder)       what one does, within `in_group`: it saves what it found as `folder/RANK.pt`
found_by_all(__file__, 3, folder)  starts them, waits for them and returns what each found
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

SECONDS = 250  # that all processes may take; a collective that nobody joins ends before


@contextmanager
def in_group(rank: int, ranks: int, folder: Path) -> Iterator[distributed.ProcessGroup]:
    """The group of all processes, which meet in a file of the folder."""
    store = distributed.FileStore(str(folder / "store"), ranks)
    distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=0.6 * SECONDS)
    )
    yield distributed.group.WORLD
    distributed.destroy_process_group()


def found_by_all(script: str, ranks: int, folder: Path) -> list[Any]:
    """Runs `script RANK RANKS FOLDER` for every rank; what the ranks printed is the message where one of them fails."""
    # Processes of one machine need no more than its own loopback, whatever the host's name resolves to.
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    environment = os.environ | loopback | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(ranks), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        printed = [each.communicate(timeout=SECONDS)[0] for each in running]
    finally:
        for each in running:
            each.kill()
    assert [each.returncode for each in running] == [0] * ranks, "\n".join(printed)
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]
