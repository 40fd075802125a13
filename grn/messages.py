"""How long work reports to the user: one line of text at a time, wherever the caller sends it."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]


def silent(line: str) -> None:
    """Discards the line."""
