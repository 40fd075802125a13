"""How long work reports its progress: one line of text at a time, to wherever the caller sends it."""

from __future__ import annotations

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
