"""What a user did that we cannot act on. One sentence each: what was found, where, what to do."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class UserError(Exception):
    """Base of every error that is the user's to mend (exit code 2, no traceback)."""


class ConfigError(UserError):
    """A configuration file, field or override that cannot be used."""


class DataError(UserError):
    """An expression matrix, its labels or its genes that cannot be used."""


class VocabularyMismatch(DataError):
    """Data whose genes are not the genes that a model knows."""


class TrainingDiverged(UserError):
    """Training met a number that is not finite; checkpoints of earlier steps are kept."""


class RunFolderError(UserError):
    """A run or model folder that cannot be read or written."""


def one_line(problem: BaseException) -> str:
    """What an exception says in its first line, to stand inside a sentence of ours."""
    lines = str(problem).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(problem).__name__


@contextmanager
def in_words_of(caller: Mapping[str, str]) -> Iterator[None]:
    """Rewords a UserError for a command or function whose options have other names than the configuration's fields.

    caller: what messages say of fields -> what they say of options; the longer before the shorter.
    """
    try:
        yield
    except UserError as error:
        sentence = str(error)
        for field, option in caller.items():
            sentence = sentence.replace(field, option)
        error.args = (sentence,)
        raise


class Interrupted(Exception):
    """The run was asked to stop by a signal, and has saved what it had. Carries the signal's number."""

    def __init__(self, signum: int, saved: str):
        super().__init__(saved)
        self.signum = signum
