"""How long work reports its progress: one line of text at a time, to wherever the caller sends it."""

from __future__ import annotations

import time
from collections.abc import Callable

Say = Callable[[str], None]


def silent(line: str) -> None:
    """Discards the line."""


def kept_in(notes: list[str], quiet: bool) -> Say:
    """Keeps each line in `notes`, and prints it unless `quiet`."""

    def say(line: str) -> None:
        notes.append(line)
        if not quiet:
            print(line, flush=True)

    return say


def at_most_every(seconds: float, say: Say) -> Say:
    """`say`, except that lines are dropped until `seconds` have passed since the last one (or since now)."""
    last = time.monotonic()

    def seldom(line: str) -> None:
        nonlocal last
        if time.monotonic() - last > seconds:
            last = time.monotonic()
            say(line)

    return seldom
