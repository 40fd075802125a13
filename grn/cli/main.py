"""The `grn` program: its commands and how it starts. Each command imports heavy libraries only when
it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, NoReturn

import typer

import grn
from grn.cli import (
    activity,
    compare,
    data,
    doctor,
    evaluate,
    explain,
    export,
    init,
    network,
    perturb,
    predict,
    report,
    train,
)
from grn.cli.console import be_quiet
from grn.cli.exit_codes import exit_code_of, exit_with
from grn.cli.options import EVERYWHERE
from grn.runtime.errors import called
from grn.runtime.threads import wait_passively

app = typer.Typer(
    name="grn",
    help="Signed gene regulatory networks and cell types from single-cell expression.",
    epilog=EVERYWHERE,
    add_completion=False,
    pretty_exceptions_enable=False,  # exit_codes.py handles all exceptions
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(grn.__version__)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


COMMANDS = (
    train,
    network,
    init,
    predict,
    explain,
    activity,
    export,
    evaluate,
    compare,
    perturb,
    report,
    doctor,
)
for each in COMMANDS:
    app.command(each.__name__.rpartition(".")[2], epilog=EVERYWHERE)(each.command)
app.add_typer(data.app, name="data", epilog=EVERYWHERE)


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    arguments: as after `grn`; `--debug` and `--quiet` may stand anywhere among them.
    """
    rest = [_expanded(each) for each in arguments if each not in ("--debug", "--quiet")]
    be_quiet("--quiet" in arguments)

    def command() -> int | None:
        with called(option_of(rest)):
            return app(args=rest, prog_name="grn", standalone_mode=False)

    return exit_code_of(command, debug="--debug" in arguments)


def _expanded(argument: str) -> str:
    """Return an argument with the user's home in place of ~, which shells do not expand in
    --output=~/x.
    """
    option, equals, value = (
        argument.rpartition("=") if argument.startswith("--") else ("", "", argument)
    )
    return f"{option}{equals}{os.path.expanduser(value)}" if value.startswith("~") else argument


def option_of(arguments: Sequence[str]) -> Callable[[str], str | None]:
    """Return the function that tells which option or argument of the called command sets a field
    (None: none does).

    Its name in Python is the last part of the field's name: `label_key`, the option --label, sets
    `data.label_key`.
    """
    command = typer.main.get_command(app)
    for each in arguments:
        command = getattr(command, "commands", {}).get(each, command)
    options = {
        each.name: each.opts[0]
        if each.param_type_name == "option"
        else str(each.metavar or each.name).upper()
        for each in command.params
    }
    return lambda field: options.get(field.rpartition(".")[2])


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and end the process: the entry point of `grn`, `python -m grn` and
    train.py.
    """
    os.environ["MPLBACKEND"] = "agg"  # pictures are written into files alone
    wait_passively()
    exit_with(main(sys.argv[1:] if arguments is None else arguments))
