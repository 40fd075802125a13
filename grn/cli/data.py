"""`grn data`: lists of transcription factors, which `data.regulators` takes by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import Debug, Quiet

app = typer.Typer(help="Lists of transcription factors for data.regulators: list, get, describe.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of grn data list.", show_default=False)]


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list")
def list_(debug: Debug = False) -> None:
    """Print the lists that data.regulators takes by name."""
    from grn.cells.gene_lists import LISTS, path_of
    from grn.cli.console import print_table

    here = {name: "yes" if path_of(name).is_file() else "no" for name in LISTS}
    rows = [[each.name, each.species, each.names, here[each.name]] for each in LISTS.values()]
    print_table("Lists of transcription factors", ["name", "species", "names", "here"], rows)


@app.command("get")
def get(
    name: Name,
    file: Annotated[
        Path | None, typer.Option("--file", help="A copy of the list, where this machine cannot download it.")
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Download a list, check it, and keep it for data.regulators."""
    from grn.cells.gene_lists import get_list, known, path_of
    from grn.cli.console import console, plain

    names = get_list(name, file)
    say, wanted = plain(console(quiet)), known(name)
    say(f"{name}: {len(names)} genes of {wanted.species} ({wanted.names}), kept in {path_of(name)}.")
    say(f"Source: {wanted.source}. Licence: {wanted.licence}.")
    say(f"Use it with: grn train cells.h5ad --regulators {name}")


@app.command("describe")
def describe(name: Name, debug: Debug = False) -> None:
    """Print where a list comes from, its licence, its hash, and whether it is here."""
    from grn.cells.gene_lists import description
    from grn.cli.console import console, plain

    say = plain(console())
    for label, text in description(name).items():
        say(f"{label}: {text}")
