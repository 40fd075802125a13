"""Turns every exception and signal into one sentence on stderr and an exit code.

0: done.   1: a fault of grn.   2: the user's input, or the user's machine.   130: Ctrl-C.   143: SIGTERM or SIGUSR1.
All other code raises UserError with a complete sentence, and catches only exceptions that it can handle.
"""

from __future__ import annotations

import errno
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grn.errors import Interrupted, Mistakes, UserError

INTERNAL_ERROR, USER_ERROR, INTERRUPTED, TERMINATED = 1, 2, 130, 143

# What the operating system refuses, and what to do: its own message names the file or folder and the reason.
REFUSALS = dict.fromkeys((errno.EACCES, errno.EPERM), "change its permissions, or choose another path")
REFUSALS |= dict.fromkeys((errno.EROFS, errno.EEXIST), "choose another output")
REFUSALS |= dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space, or choose another output")
REFUSALS |= dict.fromkeys((errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP), "give another path")
REFUSALS |= {errno.EISDIR: "rename or remove it, or give another path"}
REFUSALS |= {errno.EIO: "the disk may be damaged; choose another", errno.EMFILE: "raise the limit (ulimit -n)"}

LONGEST = 1500  # characters of a sentence; one that quotes a damaged file may have a million

# Patterns in typer's messages, and what makes them one sentence.
REPHRASED = {
    r"\. Did you mean": ", did you mean",
    "Value error, ": "",
    "Input should be": "it must be",
    r"requires (\d) arguments": r"takes \1 values, with a space between them",
    r"requires an argument": "takes a value",
    r"^Got unexpected extra argument(?:s|\(s\))? \((.+)\)": (
        r"there are more arguments than the command takes (\1); put a text with spaces in quotes, and"
    ),
}


def exit_code_of(command: Callable[[], int | None], debug: bool = False, program: str = "grn") -> int:
    """Runs `command` and returns its exit code; an exception is printed as one sentence, with `debug` in full.

    program: with its command, as `grn train`: whose --help is named where an error of typer does not say.
    """
    from typer import Abort

    try:
        with _signals_raise(), _warnings_later(debug):
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
        code, sentence = explain(error, program)
        print_error(sentence)
    if code == INTERRUPTED:  # Ctrl-C inside a command: typer itself returns this code
        print_error("interrupted.")
    return code


def explain(error: Exception, program: str = "grn") -> tuple[int, str]:
    """The exit code for an exception, and the sentence that explains it to the user."""
    if isinstance(error, Mistakes):
        return USER_ERROR, str(error)
    if isinstance(error, UserError) or type(error).__name__ == "UnusableTiles":  # flashsign's: no import of torch here
        return USER_ERROR, str(error).replace("\n", r"\n")  # a path may hold one
    context = getattr(error, "ctx", None)
    if context and hasattr(error, "option_name") and hasattr(error, "possibilities"):  # typer's, of unknown options
        from grn.cli.mistyped import unknown_option

        return USER_ERROR, unknown_option(error.option_name, context)
    if hasattr(error, "format_message"):  # typer's errors: unknown options, missing arguments
        message = " ".join(error.format_message().split()).rstrip(".?")
        for old, new in REPHRASED.items():
            message = re.sub(old, new, message)
        given = re.match(r"no such command '([^']*)'", message, re.IGNORECASE)
        if given and Path(given[1]).is_file():
            return USER_ERROR, f"{given[1]} is a file, and a command comes first; as in grn train {given[1]}."
        joined = "" if message.endswith(", and") else ";"
        return USER_ERROR, f"{message[:1].lower()}{message[1:]}{joined} see {_command_path(error, program)} --help."
    if "Invalid log settings" in str(error):  # raised by the import of torch
        return USER_ERROR, "The environment variable TORCH_LOGS has a value that torch refuses; unset it."
    if isinstance(error, OSError) and error.errno in REFUSALS:
        where = error.filename or "the disk, or what the output is sent to"
        return USER_ERROR, f"{where}: {(error.strerror or str(error)).lower()}; {REFUSALS[error.errno]}."
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or out_of_memory(str(error)):
        return USER_ERROR, (
            f"memory ran out ({_short(error)}); lower trainer.batch_size, data.genes, regulation.members or "
            "network.cells, or set data.bags: packed."
        )
    return INTERNAL_ERROR, (
        f"this is a fault of grn: {type(error).__name__}: {_first_line(error)}; please report it, with what the same "
        "command prints with --debug."
    )


def out_of_memory(message: str) -> bool:
    """Whether a library says in a RuntimeError or OSError that memory ran out: torch on CPUs, HDF5, the system."""
    return any(sign in message for sign in ("DefaultCPUAllocator", "not enough memory", "Cannot allocate memory"))


def print_error(message: str) -> None:
    """Prints each line of `message` as one error on stderr."""
    from rich.text import Text

    from grn.cli.console import errors

    for line in message.splitlines():
        errors().print(Text.assemble(("error: ", "bold red"), _printable(line)))


def _printable(line: str) -> str:
    """A sentence without what a terminal would act upon, as far as file and gene names bring it, and not endless."""
    with suppress(UnicodeEncodeError):  # bytes of a name that are no text in the system's encoding
        line = line.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    line = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 400]} … {line[-400:]}"


class _Terminated(BaseException):
    """A signal outside of training. Not an Exception, so that no `except Exception` can swallow it."""


@contextmanager
def _warnings_later(at_once: bool) -> Iterator[None]:
    """Holds warnings of libraries back until the command has ended: none stands before, or blurs, a UserError."""
    if at_once:
        yield
        return
    held: list[tuple] = []
    with warnings.catch_warnings():
        warnings.showwarning = lambda *shown: held.append(shown)  # type: ignore[assignment]
        yield
    for shown in held:
        warnings.showwarning(*shown)


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Makes SIGTERM and SIGUSR1 raise. Training installs handlers of its own, which save and raise Interrupted."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread can set handlers
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, _terminate) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: object) -> None:
    raise _Terminated(signal.Signals(number).name)


def _command_path(error: Exception, program: str) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context else program


def _short(error: Exception) -> str:
    """The part of a first line that says how much memory was wanted, else its beginning."""
    line = _first_line(error)
    wanted = re.search(r"(you tried|[Tt]ried|[Uu]nable) to allocate [\d.]+ *\w+", line)
    return wanted[0] if wanted else line[:100]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else "no message"


def exit_with(code: int) -> None:
    """Ends the process. Output that cannot be flushed because its reader has gone is not an error."""
    try:
        if sys.stdout is not None:  # closed before the start: >&-
            sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # type: ignore[assignment]
    sys.exit(code)
