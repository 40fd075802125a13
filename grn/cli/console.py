"""Printing: with rich on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


_quiet = False


def be_quiet(quiet: bool) -> None:
    """Make `console` print nothing, or print again: --quiet."""
    global _quiet
    _quiet = quiet


def console() -> Console:
    """Return the console for progress and results (stdout)."""
    return _console(stderr=False, quiet=_quiet)


def errors() -> Console:
    """Return the console for errors (stderr)."""
    return _console(stderr=True, quiet=False)


def plain(to: Console) -> Callable[[str], None]:
    """Return a function that prints one line as it is: square brackets are not markup."""
    return lambda line: to.print(line, markup=False)


@cache
def _console(stderr: bool, quiet: bool) -> Console:
    from rich.console import Console

    class Steady(Console):
        """Keeps working when its output is closed, as behind `| head`: the work may have taken
        hours.
        """

        def on_broken_pipe(self) -> None:
            self.quiet = True
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), (sys.stderr if stderr else sys.stdout).fileno()
            )

    # soft_wrap: rich must not break lines, whatever width it assumes.
    return Steady(stderr=stderr, quiet=quiet, highlight=False, soft_wrap=True)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], to: Console | None = None
) -> None:
    """Print a table: on a terminal with borders, elsewhere as one aligned line for each row, which
    is never cut.

    to: None: `console`.
    """
    to = to or console()
    texts = [[_text(value) for value in row] for row in rows]
    if to.is_terminal:
        from rich.table import Table
        from rich.text import Text

        # As Text, square brackets in labels and gene names are not markup.
        table = Table(title=Text(title, "bold"), title_justify="left")
        for number, column in enumerate(columns):
            table.add_column(Text(column), justify="left" if number == 0 else "right")
        for row in texts:
            table.add_row(*map(Text, row))
        to.print(table)
        return
    lines = [list(columns), *texts]
    widths = [max(len(line[column]) for line in lines) for column in range(len(columns))]
    to.print(title, markup=False)
    for line in lines:
        to.print(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip(),
            markup=False,
        )


def _text(value: object) -> str:
    """Return the text of a value: of a float with four digits, and - for NaN."""
    if not isinstance(value, float):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.4g}"
