"""Errors that the user can correct: what was found, which field it concerns, and what to do about
it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Base of all errors that the user can correct (exit code 2, no traceback).

    problem: what was found and where, a sentence without its full stop.
    field: the configuration's field that it concerns, as `data.regulators`.
    advice: what to do. In both texts `{field}` stands for the field as the user sets it, which the
        command line and Python's functions each call by a name of their own (`called`).
    said: another process, which found the same, tells the user.
    """

    said = False

    def __init__(self, problem: str, *, field: str | None = None, advice: str | None = None):
        super().__init__(problem)
        self.problem, self.field, self.advice = problem, field, advice
        self.shown = field

    def __str__(self) -> str:
        text = self.problem
        if self.advice is not None:
            text = f"{text.rstrip('.')}; {self.advice.rstrip('.')}" + (
                "" if self.advice.endswith("?") else "."
            )
        return text if self.shown is None else text.replace("{field}", self.shown)


class ConfigError(UserError):
    """A configuration file, field or override that cannot be used."""


class Mistakes(ConfigError):
    """All that is wrong with a configuration: a line, which is one sentence, for each mistake."""


class DataError(UserError):
    """An expression matrix, its labels or its genes that cannot be used."""


class CellsNotStored(DataError):
    """The run was trained on an AnnData in memory, so no file holds its cells."""


class VocabularyMismatch(DataError):
    """Data that lack too many of a model's genes."""


class TrainingDiverged(UserError):
    """A loss or gradient that is not finite; checkpoints of earlier steps are kept."""


class RunFolderError(UserError):
    """A run or model folder that cannot be read or written."""


class Interrupted(Exception):
    """A signal stopped the run after it had saved its state.

    signum: the number of the signal.
    """

    def __init__(self, signum: int, saved: str):
        super().__init__(saved)
        self.signum = signum


@contextmanager
def called(name_of: Callable[[str], str | None]) -> Iterator[None]:
    """Within it, a UserError names its field as this door does; name_of: `data.label_key` ->
    `--label`, or None.
    """
    try:
        yield
    except UserError as error:
        if error.field is not None:
            error.shown = name_of(error.field) or error.shown
        raise


def one_line(problem: BaseException) -> str:
    """The first line of an exception's message, without its full stop,
    for use inside a sentence.
    """
    lines = str(problem).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(problem).__name__


def nearest(name: object, known: Iterable[object], likeness: float = 0.6) -> str | None:
    """The known name that is most like this one, whatever its case, or None.

    likeness: the least that counts, 0 to 1, as difflib measures it.
    """
    of_folded = {str(each).casefold(): str(each) for each in known}
    near = difflib.get_close_matches(str(name).casefold(), list(of_folded), n=1, cutoff=likeness)
    return of_folded[near[0]] if near else None


def check_known(
    name: str, known: Iterable[object], where: str, what: str, field: str | None = None
) -> None:
    """Raise DataError where `name` is not one of the things (`what`) that `where` has."""
    names = list(dict.fromkeys(map(str, known)))
    if name not in names:
        near = nearest(name, names)
        listed = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
        hint = f"did you mean {near!r}?" if near else f"it has {listed or 'none'}."
        raise DataError(f"{where} has no {what} {name!r}; {hint}", field=field)
