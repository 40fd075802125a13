"""Threads of torch: as many as the work is worth, and they wait without spinning.

OpenMP's threads spin at the end of each parallel operation. Beside other programs, each such wait
lasts until the system gives the processor to the thread that is late: a fit of 2 s took 197 s.
Threads that sleep take 1.5 to 2.5 times as long beside one busy program a core, and as long as
before on an idle machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

# OpenMP's own variable, and Intel's and LLVM's, whose threads spin for 200 ms otherwise.
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
A_THREAD = 2**24  # multiplications of a step that are worth a thread: fewer take as long with two


def wait_passively(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make OpenMP's threads sleep while they wait, unless the user has said how they wait.

    OpenMP reads the variables when torch is imported; later this does nothing. `grn` and the
    functions of `import grn` call it before they import torch. Programs that import torch earlier
    set OMP_WAIT_POLICY=PASSIVE themselves.
    """
    if "torch" not in sys.modules and not any(
        name in environment for name in (*PASSIVE, "GOMP_SPINCOUNT")
    ):
        environment.update(PASSIVE)


@contextmanager
def threads_for(multiplications: float) -> Iterator[None]:
    """Within it, torch has a thread for each A_THREAD multiplications of a step, and never more
    than it had before.

    Numba sets torch's number of threads to its own wherever it runs first; OMP_NUM_THREADS and the
    processors that this process may use stay the limit.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, most_threads(), int(multiplications // A_THREAD))))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def most_threads() -> int:
    """OMP_NUM_THREADS where it is set, and at most one thread for each processor that this process
    may use.
    """
    available = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(available, int(given)) if given.isdecimal() and int(given) else available


Value = TypeVar("Value")


def ahead(values: Iterator[Value]) -> Iterator[Value]:
    """Yield the given values, none of them None; a thread of its own makes each while the one
    before it is used.
    """
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, values, None)
        while (value := following.result()) is not None:
            following = pool.submit(next, values, None)
            yield value
