"""`grn data`: lists of transcription factors, which `data.regulators` takes by name, and known regulons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import EVERYWHERE

app = typer.Typer(help="Published lists of transcription factors, and known regulons: list, get.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of grn data list.", show_default=False)]


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", epilog=EVERYWHERE)
def list_() -> None:
    """Print the lists that --regulators takes by name, and the known regulons that --regulons does."""
    from grn.cells.gene_lists import LISTS, REGULONS, path_of
    from grn.cli.console import print_table

    for title, lists in (("Transcription factors (--regulators)", LISTS), ("Known regulons (--regulons)", REGULONS)):
        rows = [[e.name, e.species, e.names, "yes" if path_of(e.name).is_file() else "no"] for e in lists.values()]
        print_table(title, ["name", "species", "names", "here"], rows)


@app.command("get", epilog=EVERYWHERE)
def get(
    name: Name,
    file: Annotated[
        Path | None, typer.Option("--file", help="A copy of the list, where this machine cannot download it.")
    ] = None,
) -> None:
    """Download a list, check it, and keep it for use by its name."""
    from grn.cells.gene_lists import get_list, known, path_of
    from grn.cli.console import console, plain

    names, wanted, say = get_list(name, file), known(name), plain(console())
    say(f"{name}: {wanted.size(len(names))} of {wanted.species} ({wanted.names}), kept in {path_of(name)}.")
    say(f"Source: {wanted.source}. Licence: {wanted.licence}.")
    use = (
        f"activity cells.h5ad --regulons {name} --by COLUMN"
        if wanted.edges
        else f"train cells.h5ad --regulators {name}"
    )
    say(f"Use it with: grn {use}")
