"""Exit codes: every exception and signal becomes one sentence on stderr and a code.

    0      done
    1      a fault of grn
    2      the user's input, or the user's machine
    130    Ctrl-C
    143    SIGTERM, SIGUSR1 or SIGHUP

All other code raises UserError, and catches only exceptions that it can handle.
"""

from __future__ import annotations

import errno
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from grn.runtime.errors import Interrupted, Mistakes, UserError, one_line

INTERNAL_ERROR, USER_ERROR, INTERRUPTED, TERMINATED = 1, 2, 130, 143
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGHUP")

# Errors by which the operating system refuses something: its own message names the file or folder
# and the reason.
REFUSALS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EEXIST,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EISDIR,
    errno.EIO,
    errno.EMFILE,
}

# in messages of torch, of HDF5 and of the operating system
OUT_OF_MEMORY = ("DefaultCPUAllocator", "not enough memory", "Cannot allocate memory")
LONGEST = 1500  # characters of a sentence; one that quotes a damaged file may have a million


def exit_code_of(command: Callable[[], int | None], debug: bool = False) -> int:
    """Run a command and return its exit code; print an exception as one sentence.

    debug: print its traceback, too.
    """
    from typer import Abort

    try:
        with _signals_raise():
            code = command() or 0
    except (KeyboardInterrupt, Abort):
        code = INTERRUPTED
    except Interrupted as stopped:
        print_error(f"stopped by {signal.Signals(stopped.signum).name}: {stopped}.")
        return INTERRUPTED if stopped.signum == signal.SIGINT else TERMINATED
    except _Terminated as stopped:
        print_error(f"stopped by {stopped}.")
        return TERMINATED
    except Exception as error:
        if debug:
            traceback.print_exc()
        code, sentence = explain(error)
        lines = sentence.splitlines() if isinstance(error, Mistakes) else [sentence]
        for line in [] if isinstance(error, UserError) and error.said else lines:
            print_error(line)
    if code == INTERRUPTED:  # Ctrl-C inside a command: typer itself returns this code
        print_error("interrupted.")
    return code


def explain(error: Exception) -> tuple[int, str]:
    """Return the exit code of an exception, and the sentence that explains it to the user."""
    if isinstance(error, UserError):
        return USER_ERROR, str(error)
    if hasattr(error, "format_message"):  # typer's errors: unknown options, missing arguments
        context = getattr(error, "ctx", None)
        message = " ".join(error.format_message().split()).rstrip(".?")
        return USER_ERROR, f"{message}; see {context.command_path if context else 'grn'} --help."
    if isinstance(error, OSError) and error.errno in REFUSALS:
        where = error.filename or "the disk, or what the output is sent to"
        return USER_ERROR, f"{where}: {(error.strerror or str(error)).lower()}."
    out_of_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if out_of_memory or any(sign in str(error) for sign in OUT_OF_MEMORY):
        return USER_ERROR, (
            f"memory ran out ({one_line(error)[:150]}); lower trainer.batch_size, data.genes or "
            "model.members."
        )
    return INTERNAL_ERROR, (
        f"this is a fault of grn: {type(error).__name__}: {one_line(error)}; please report it, "
        "with what the same command prints with --debug."
    )


def print_error(sentence: str) -> None:
    """Print an error on stderr as one line, without what a terminal would act upon."""
    from rich.text import Text

    from grn.cli.console import errors

    # Paths and names of genes may hold line feeds, colours of a terminal, or bytes that are no
    # text.
    line = sentence.encode("utf-8", "backslashreplace").decode("utf-8")
    line = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)
    line = line if len(line) <= LONGEST else f"{line[: LONGEST - 400]} … {line[-400:]}"
    errors().print(Text.assemble(("error: ", "bold red"), line))


class _Terminated(BaseException):
    """Raised by a signal outside of training.

    Not an Exception, so that no `except Exception` can swallow it.
    """


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Make SIGNALS raise _Terminated within the context, except ignored ones, as SIGHUP is under
    nohup.

    Training installs handlers of its own, which save and raise Interrupted.
    """
    # only the main thread can set handlers
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    before = {each: signal.getsignal(each) for each in numbers}
    before = {
        number: handler for number, handler in before.items() if handler is not signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: object) -> None:
    raise _Terminated(signal.Signals(number).name)


def exit_with(code: int) -> NoReturn:
    """End the process.

    Output that cannot be flushed because its reader has gone is not an error.
    """
    try:
        if sys.stdout is not None:  # closed before the start: >&-
            sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None
    sys.exit(code)
