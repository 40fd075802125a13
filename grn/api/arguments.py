"""Arguments of the Python interface: a value of another kind than an argument takes is said in a sentence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from pathlib import Path

from grn.errors import ConfigError, DataError

TEXT, WHOLE, NUMBER = "a text", "a whole number", "a number"
KINDS: dict[str, type] = {TEXT: str, WHOLE: Integral, NUMBER: Real}


def check(kind: str, *, least: float | None = None, needed: bool = False, **given: object) -> None:
    """Raises ConfigError for a value that is not of this kind, or is below `least`.

    None: it was not given, which is refused where it is `needed`.
    """
    for name, value in given.items():
        if value is None and not needed:
            continue
        if not isinstance(value, KINDS[kind]) or isinstance(value, bool) or value != value:
            raise ConfigError(f"{name} is {shown(value)}; it must be {kind}.")
        if least is not None and value < least:  # type: ignore[operator]
            raise ConfigError(f"{name} is {value!r}; it must be at least {least:g}.")


def shown(value: object) -> str:
    """A value in a sentence: as Python writes it, or by its type where that would be long."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"of the type {type(value).__name__}"


def as_path(value: object, name: str) -> Path:
    """`value`, if it can be a path. name: of the argument, in messages. Raises DataError."""
    if not isinstance(value, (str, os.PathLike)):
        raise DataError(f"{name} takes a path, not {type(value).__name__}; give it as a text.")
    if not os.fspath(value):
        raise DataError(f"{name} is empty; give a path.")
    return Path(value)


def names_or_file(choice: Sequence[str] | str | os.PathLike[str]) -> Sequence[str] | str:
    """Names of genes as texts, or the path of a file with them. Raises DataError for anything else."""
    if isinstance(choice, (str, os.PathLike)):
        return os.fspath(choice)
    if not isinstance(choice, Iterable):
        raise DataError(f"Genes are given as a list of names or a file, not as {type(choice).__name__}.")
    names = [str(name) for name in choice]
    if not names:
        raise DataError("A list of genes is empty; give names, or leave it out.")
    return names
