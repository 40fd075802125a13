"""`grn`: the commands and how they are started. Heavy libraries are imported by the command that needs them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import grn
from grn.cli import evaluate, export, predict, train
from grn.cli.exit_codes import exit_with, guarded

app = typer.Typer(
    name="grn",
    help="Signed gene regulatory networks and cell types from single-cell expression.",
    add_completion=False,
    pretty_exceptions_enable=False,  # boundary.py is the one place for exceptions
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    if version:
        typer.echo(grn.__version__)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("train")(train.command)
app.command("predict")(predict.command)
app.command("export")(export.command)
app.command("evaluate")(evaluate.command)


def main(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    return guarded(
        lambda: app(args=list(arguments), prog_name="grn", standalone_mode=False), debug="--debug" in arguments
    )


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """What the `grn` script, `python -m grn` and train.py start."""
    exit_with(main(sys.argv[1:] if arguments is None else arguments))
    raise AssertionError("exit_with returned")
