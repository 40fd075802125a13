"""How long a training takes beside other work: alone, and beside one busy process for each
processor.

Each run is `grn train` on the CPU in a process of its own. A busy process computes without end.
Beside the times stands what the run used of the processors: threads that spin use more beside other
work, threads that sleep do not. On a machine that has other work already, no time is that of an
idle one; the load average is printed, too.

    python benchmarks/busy.py [--sets small pbmc large] [--spinning] [--threads N]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from arguments import Option, all_of, read_options

BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
MOST = 2.5  # times as long as alone that a run may take
SETS = {
    "small": [
        "simulated:",
        "data.simulated.cells=80",
        "data.simulated.genes=16",
        "trainer.max_steps=100",
    ],
    "pbmc": ["pbmc.yaml"],
    "large": ["simulated:", "data.simulated.cells=4000", "data.simulated.genes=400"],
}
SHORT = ("trainer.max_steps=100",)  # of the large set


def command(name: str, folder: Path) -> list[str]:
    """The run of a set, in steps few enough for a minute or two."""
    cells, *fields = SETS[name]
    fields = [*fields, *(SHORT if name == "large" else ()), "trainer.accelerator=cpu"]
    given = ["--config", cells] if cells.endswith(".yaml") else [cells]
    changes = [part for field in fields for part in ("--set", field)]
    return [
        sys.executable,
        "-m",
        "grn",
        "train",
        *given,
        "--output",
        str(folder),
        "--quiet",
        *changes,
    ]


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Within it, so many processes compute without end."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


def seconds(name: str, processes: int, environment: dict[str, str]) -> tuple[float, float]:
    """How long a run takes beside so many busy processes, and how long it computes on all
    processors together.
    """
    with tempfile.TemporaryDirectory() as home, busy(processes):
        started = time.monotonic()
        run = subprocess.Popen(command(name, Path(home) / "run"), env=environment)
        _, status, used = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        if run.returncode:
            raise SystemExit(f"the run of {name} ended with {run.returncode}")
        return time.monotonic() - started, used.ru_utime + used.ru_stime


def measure(names: list[str], environment: dict[str, str]) -> pd.DataFrame:
    """Columns set, load (before the two runs), alone, beside, ratio; alone_cpu, beside_cpu (of
    processors); seconds.
    """
    rows = []
    for name in names:
        load = os.getloadavg()[0]
        (alone, alone_cpu), (beside, beside_cpu) = (
            seconds(name, processes, environment) for processes in (0, os.cpu_count() or 1)
        )
        rows.append((name, load, alone, beside, beside / alone, alone_cpu, beside_cpu))
        print(f"{name}: {alone:.1f} s, beside {beside:.1f} s, ratio {beside / alone:.2f}; ", end="")
        print(
            f"of processors {alone_cpu:.1f} s, beside {beside_cpu:.1f} s; load {load:.1f}",
            flush=True,
        )
    return pd.DataFrame(
        rows, columns=["set", "load", "alone", "beside", "ratio", "alone_cpu", "beside_cpu"]
    )


def main() -> int:
    options = read_options(
        __doc__,
        sets=all_of(SETS),
        spinning=Option(False, "with threads that spin, for comparison"),
        threads=Option(help="OMP_NUM_THREADS", kind=int),
    )
    environment = dict(os.environ)
    if options.spinning:
        environment["OMP_WAIT_POLICY"] = "ACTIVE"
    if options.threads:
        environment["OMP_NUM_THREADS"] = str(options.threads)
    found = measure(options.sets, environment)
    return int((found["ratio"] > MOST).any())


if __name__ == "__main__":
    sys.exit(main())
