"""What a user did that we cannot act on. One sentence each: what was found, where, what to do."""


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


class Interrupted(Exception):
    """The run was asked to stop by a signal, and has saved what it had. Carries the signal's number."""

    def __init__(self, signum: int, saved: str):
        super().__init__(saved)
        self.signum = signum
