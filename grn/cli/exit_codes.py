"""The one place where exceptions and signals become a sentence and an exit code.

0 done; 1 a fault of ours; 2 the user's input or machine; 130 Ctrl-C; 143 SIGTERM or SIGUSR1.
Code below raises UserError with one sentence and catches only what it can mend.
"""

from __future__ import annotations

import errno
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from grn.errors import Interrupted, UserError

OURS, YOURS, INTERRUPTED, TERMINATED = 1, 2, 130, 143

# What the machine refuses: no code of ours can mend it, and the system's own sentence names the place.
REFUSALS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}
REFUSALS |= {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}  # names that cannot be what they should be

# Typer's words, made one sentence.
SAID_BETTER = {". Did you mean": ", did you mean", "Value error, ": "", "Input should be": "it must be"}


def guarded(command: Callable[[], int | None], debug: bool = False) -> int:
    """Runs `command` and returns the exit code of what happened, said in one sentence on stderr."""
    from typer import Abort

    try:
        with _signals_raise():
            code = command() or 0
    except (KeyboardInterrupt, Abort):
        code = INTERRUPTED
    except Interrupted as stopped:
        say(f"stopped by {signal.Signals(stopped.signum).name}: {stopped}.")
        return INTERRUPTED if stopped.signum == signal.SIGINT else TERMINATED
    except _Terminated as stopped:
        say(f"stopped by {stopped}.")
        return TERMINATED
    except Exception as error:
        if debug:
            traceback.print_exc()
        code, sentence = judge(error)
        say(sentence)
    if code == INTERRUPTED:  # typer itself turns Ctrl-C inside a command into this code
        say("interrupted.")
    return code


def judge(error: Exception) -> tuple[int, str]:
    """The exit code of an exception and the sentence that tells it."""
    if isinstance(error, UserError) or type(error).__name__ == "UnusableTiles":  # flashsign's: no import of torch here
        return YOURS, str(error)
    if hasattr(error, "format_message"):  # what typer says of unknown options and missing arguments
        message = " ".join(error.format_message().split()).rstrip(".?")
        for theirs, ours in SAID_BETTER.items():
            message = message.replace(theirs, ours)
        return YOURS, f"{message[:1].lower()}{message[1:]}; see {_command_path(error)} --help."
    if isinstance(error, OSError) and error.errno in REFUSALS:
        return YOURS, f"{error.filename or 'the disk'}: {(error.strerror or str(error)).lower()}."
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return YOURS, (
            f"memory ran out ({_first_line(error)}); lower trainer.batch_size, data.genes, regulation.members or "
            "network.cells, or set data.bags: packed."
        )
    return OURS, (
        f"this is a fault of ours: {type(error).__name__}: {_first_line(error)}; "
        "please report it with what the same command prints with --debug."
    )


def say(sentence: str) -> None:
    """Each line of `sentence` as one error on stderr."""
    from rich.text import Text

    from grn.cli.console import errors

    for line in sentence.splitlines():
        errors().print(Text.assemble(("error: ", "bold red"), line))


class _Terminated(BaseException):
    """A signal outside training. Not an Exception: nothing on its way to the boundary may swallow it."""


@contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGTERM and SIGUSR1 raise; training puts its own handlers in their place, which save and raise Interrupted."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)]
    before = {number: signal.signal(number, _terminate) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: object) -> None:
    raise _Terminated(signal.Signals(number).name)


def _command_path(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context else "grn"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else "no message"


def exit_with(code: int) -> None:
    """Ends the process. A reader that closed the pipe early is no reason for a second message."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # type: ignore[assignment]
    sys.exit(code)
