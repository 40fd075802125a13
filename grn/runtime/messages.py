"""How long work reports its progress: one line of text at a time, to wherever the caller sends
it.

The command line sends it to its console. Python's functions print it, or log it as the logger
"grn", level INFO, where the program has set up logging for that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]
LOGGER = logging.getLogger("grn")
PAUSE = 10.0  # seconds after which a line is due


@contextmanager
def patient(say: Say, doing: str, every: float = PAUSE) -> Iterator[None]:
    """Say every ten seconds that a long piece of work goes on, and for how long it has.

    doing: what is done, the beginning of a sentence.
    every: seconds between the lines.
    """
    ended, started = threading.Event(), time.monotonic()

    def report() -> None:
        while not ended.wait(every):
            say(f"{doing}, for {time.monotonic() - started:.0f} s so far.")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def show(line: str) -> None:
    """Logs the line where the program's logging would show it, or says by the logger's own level
    that it should not; prints it elsewhere."""
    unwanted = LOGGER.level > logging.INFO
    if unwanted or (LOGGER.hasHandlers() and LOGGER.isEnabledFor(logging.INFO)):
        LOGGER.info("%s", line)
    else:
        print(line, flush=True)


def silent(line: str) -> None:
    """Discards the line."""


def kept_in(notes: list[str], quiet: bool) -> Say:
    """Return a `say` that keeps each line in `notes`, and shows it unless `quiet`."""

    def say(line: str) -> None:
        notes.append(line)
        if not quiet:
            show(line)

    return say
