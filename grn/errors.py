"""Errors that the user can correct. Each message is one sentence: what was found, where, and what to do."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class UserError(Exception):
    """Base of all errors that the user can correct (exit code 2, no traceback)."""


class ConfigError(UserError):
    """A configuration file, field or override that cannot be used."""


class Mistakes(ConfigError):
    """All that is wrong with a configuration: a line, which is one sentence, for each mistake."""


class DataError(UserError):
    """An expression matrix, its labels or its genes that cannot be used."""


class CellsNotStored(DataError):
    """Cells of a run that were an AnnData in memory: no file holds them, and none was changed or lost."""


class VocabularyMismatch(DataError):
    """Data that lack too many of a model's genes."""


class TrainingDiverged(UserError):
    """A loss or gradient that is not finite; checkpoints of earlier steps are kept."""


class RunFolderError(UserError):
    """A run or model folder that cannot be read or written."""


def one_line(problem: BaseException) -> str:
    """The first line of an exception's message, without its full stop, for use inside a sentence."""
    lines = str(problem).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(problem).__name__


@contextmanager
def reworded(replacements: Mapping[str, str]) -> Iterator[None]:
    """Rewords a UserError for a command or function whose options have other names than the configuration's fields.

    replacements: text about a field -> text about the option, replaced in this order (longer texts first).
    """
    try:
        yield
    except UserError as error:
        sentence = str(error)
        for field, option in replacements.items():
            sentence = sentence.replace(field, option)
        error.args = (sentence,)
        raise


class Interrupted(Exception):
    """A signal stopped the run after it had saved its state. `signum` is the number of the signal."""

    def __init__(self, signum: int, saved: str):
        super().__init__(saved)
        self.signum = signum
