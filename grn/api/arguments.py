"""Arguments of the Python interface: a value of another kind than an argument takes is said in a sentence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from pathlib import Path

from grn.errors import ConfigError, DataError

TEXT, WHOLE, NUMBER = "a text", "a whole number", "a number"
KINDS: dict[str, type] = {TEXT: str, WHOLE: Integral, NUMBER: Real}


def check(kind: str, *, least: float | None = None, **given: object) -> None:
    """Raises ConfigError for a value that is not of this kind, or is below `least`. None: it was not given."""
    for name, value in given.items():
        if value is None:
            continue
        if not isinstance(value, KINDS[kind]) or isinstance(value, bool) or value != value:
            raise ConfigError(f"{name} is {value!r}; it must be {kind}.")
        if least is not None and value < least:  # type: ignore[operator]
            raise ConfigError(f"{name} is {value!r}; it must be at least {least:g}.")


def as_path(value: object, name: str) -> Path:
    """`value`, if it can be a path. name: of the argument, in messages. Raises DataError."""
    if not isinstance(value, (str, os.PathLike)):
        raise DataError(f"{name} takes a path, not {type(value).__name__}; give it as a text.")
    return Path(value)


def names_or_file(choice: Sequence[str] | str | os.PathLike[str]) -> Sequence[str] | str:
    """Names of genes as texts, or the path of a file with them. Raises DataError for anything else."""
    if isinstance(choice, (str, os.PathLike)):
        return os.fspath(choice)
    if not isinstance(choice, Iterable):
        raise DataError(f"Genes are given as a list of names or a file, not as {type(choice).__name__}.")
    return [str(name) for name in choice]
