"""How long work reports its progress: one line of text at a time, to wherever the caller sends it."""

from __future__ import annotations

import time
from collections.abc import Callable

Say = Callable[[str], None]


def silent(line: str) -> None:
    """Discards the line."""


def at_most_every(seconds: float, say: Say) -> Say:
    """`say`, except that lines are dropped until `seconds` have passed since the last one (or since now)."""
    last = time.monotonic()

    def seldom(line: str) -> None:
        nonlocal last
        if time.monotonic() - last > seconds:
            last = time.monotonic()
            say(line)

    return seldom
