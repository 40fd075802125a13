"""The `grn` program: its commands and how it starts. Each command imports heavy libraries only when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from typing import Annotated, NoReturn

import typer

import grn
from grn.cli import benchmark, compare, data, doctor, evaluate, explain, export, init, perturb, predict, report, train
from grn.cli.exit_codes import exit_code_of, exit_with
from grn.cli.mistyped import refuse_mistyped
from grn.config.launcher import refuse_odd_launcher
from grn.errors import ConfigError
from grn.threads import wait_passively

app = typer.Typer(
    name="grn",
    help="Signed gene regulatory networks and cell types from single-cell expression.",
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


app.command("train")(train.command)
app.command("init")(init.command)
app.command("predict")(predict.command)
app.command("explain")(explain.command)
app.command("export")(export.command)
app.command("evaluate")(evaluate.command)
app.command("compare")(compare.command)
app.command("perturb")(perturb.command)
app.command("report")(report.command)
app.add_typer(data.app, name="data")
app.command("doctor")(doctor.command)
app.command("benchmark")(benchmark.command)


def main(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""

    def command() -> int | None:
        _refuse_removed_folder()
        _refuse_no_docstrings()
        refuse_odd_launcher()
        _refuse_empty(arguments)
        _refuse_parted_override(arguments)
        refuse_mistyped(typer.main.get_command(app), arguments)
        return app(args=list(arguments), prog_name="grn", standalone_mode=False)

    known = {each.name for each in app.registered_commands} | {each.name for each in app.registered_groups}
    program = " ".join(["grn", *(each for each in arguments[:1] if each in known)])
    return exit_code_of(command, debug="--debug" in arguments, program=program)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Raises ConfigError for an empty argument, as from a variable of the shell that is not set."""
    for place, argument in enumerate(arguments):
        if not argument.strip() or (argument.startswith("--") and argument.endswith("=")):
            before = argument.rstrip("=") if argument.strip() else " ".join(arguments[:place][-1:])
            raise ConfigError(f"What follows {before or 'grn'} is empty; give a value, or leave it out.")


def _refuse_parted_override(arguments: Sequence[str]) -> None:
    """Raises ConfigError for --set FIELD VALUE and --set FIELD= VALUE: typer would call VALUE an argument too many."""
    for option, field, value in zip(arguments, arguments[1:], arguments[2:], strict=False):
        if option == "--set" and not field.partition("=")[2] and not value.startswith("--"):
            whole = f"{field.rstrip('=')}={value.lstrip('=')}"
            if value != "=":
                raise ConfigError(f"--set {field} {value} has a space where none may be; write --set {whole}.")
            raise ConfigError(f"--set {field} = has spaces where none may be; write --set {field}=VALUE.")


def _refuse_removed_folder() -> None:
    """Raises ConfigError where the working folder has been removed: torch would end the process, with code 2."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError(
            "The folder that this command was started in does not exist any more; go to another one (cd), and start it "
            "there."
        ) from None


def _refuse_no_docstrings() -> None:
    """Raises ConfigError where Python has left out docstrings, which libraries edit when they are imported."""
    if sys.flags.optimize > 1:
        raise ConfigError("Python runs without docstrings, which its libraries need; unset PYTHONOPTIMIZE, or -OO.")


def use_sound_environment(environment: MutableMapping[str, str]) -> None:
    """Removes what libraries would read from the environment and fail at; matplotlib draws into files alone.

    With a width of 0, rich prints nothing, not even errors; other texts than numbers end typer and matplotlib.
    """
    for name in ("COLUMNS", "LINES", "TERMINAL_WIDTH"):
        if not (environment.get(name, "1").isdecimal() and int(environment.get(name, "1"))):
            del environment[name]
    environment["MPLBACKEND"] = "agg"


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs one command and ends the process: the entry point of `grn`, `python -m grn` and train.py."""
    use_sound_environment(os.environ)
    wait_passively()
    exit_with(main(sys.argv[1:] if arguments is None else arguments))
    raise AssertionError("exit_with returned")
