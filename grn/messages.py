"""How long work reports its progress: one line of text at a time, to wherever the caller sends it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


@contextmanager
def glyphs_lacking() -> Iterator[list[str]]:
    """Within it, matplotlib does not warn of characters that its fonts lack, as of other scripts: it draws boxes.

    The list holds its warnings of them at the end; other warnings are shown as ever.
    """
    lacking: list[str] = []
    with warnings.catch_warnings(record=True) as found:
        warnings.filterwarnings("always", message="Glyph .* missing from")
        yield lacking
    for each in found:
        if str(each.message).startswith("Glyph ") and "missing from" in str(each.message):
            lacking.append(str(each.message))
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
