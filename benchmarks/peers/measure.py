"""A call in a process of its own, with its time and memory.

The process is spawned, so that its peak memory does not include its parent's. Linux's getrusage
starts a child with its parent's peak, so the peak is read from /proc/self/status where that exists.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LIBRARIES = ("numpy", "scipy", "pandas", "scikit-learn", "joblib", "torch", "grn")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class CallFailed(RuntimeError):
    """The call raised, or its process died; the message is its traceback or exit code."""


def measured(
    call: Callable[..., Any], *arguments: Any, jobs: int = 1, threads: int | None = 1
) -> tuple[Any, dict[str, Any]]:
    """The result of call(*arguments), and its time and memory.

    `jobs`: the most processes that it starts; `threads`: the threads of each (None: as the caller).
    Measures: `seconds` of wall time, without the import of the call's own module; `cpu_seconds` of
        all processes; `peak_mb`, the peak of the process plus, where it started others, `jobs`
        times that of the largest (an upper bound: pages may be shared); `cores` (jobs times
        threads), `python`, `versions`.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_inside, args=(theirs, call, arguments))
    with _threads(threads):
        process.start()
    theirs.close()
    try:
        failed, result, measures = ours.recv()
    except EOFError:
        process.join()
        raise CallFailed(f"its process ended with exit code {process.exitcode}") from None
    finally:
        ours.close()
    process.join()
    if failed:
        raise CallFailed(result)
    measures["peak_mb"] += jobs * measures.pop("largest_child_mb")
    cores = jobs * (threads or os.cpu_count() or 1)
    return result, measures | {
        "cores": cores,
        "python": platform.python_version(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _inside(pipe: Connection, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        started, used = time.perf_counter(), time.process_time()
        result = call(*arguments)
        seconds, used = time.perf_counter() - started, time.process_time() - used
        _end_workers()
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        measures = {
            "seconds": round(seconds, 3),
            "cpu_seconds": round(used + children.ru_utime + children.ru_stime, 3),
            "peak_mb": round(_own_peak_mb(), 1),
            "largest_child_mb": round(_megabytes(children.ru_maxrss), 1),
        }
        pipe.send((False, result, measures))
    except BaseException:
        pipe.send((True, traceback.format_exc(), {}))
    finally:
        pipe.close()


def _end_workers() -> None:
    """Ends the processes that joblib keeps for the next call, because only ended processes are
    counted.
    """
    loky = sys.modules.get("joblib.externals.loky")
    if (
        loky is not None
        and sys.modules["joblib.externals.loky.reusable_executor"]._executor is not None
    ):
        loky.get_reusable_executor().shutdown(wait=True)


def _own_peak_mb() -> float:
    status = Path("/proc/self/status")
    if status.exists():
        line = next(
            (line for line in status.read_text().splitlines() if line.startswith("VmHWM:")), None
        )
        if line:
            return int(line.split()[1]) / 1024
    return _megabytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _megabytes(maxrss: int) -> float:
    return maxrss / (1024**2 if sys.platform == "darwin" else 1024)


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Sets the variables that libraries read when they are loaded, so that the new process starts
    with them.
    """
    if number is None:
        yield
        return
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, str(number)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
