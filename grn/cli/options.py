"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

Debug = Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]


@contextmanager
def in_words_of(options: dict[str, str]) -> Iterator[None]:
    """What users did wrong, in the words of a command that has options where a configuration has fields.

    options: what is said of fields -> what is said of options, the longer before the shorter.
    """
    from grn.errors import UserError

    try:
        yield
    except UserError as error:
        said = str(error)
        for field, option in options.items():
            said = said.replace(field, option)
        if said == str(error):
            raise
        raise type(error)(said) from error
