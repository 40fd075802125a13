"""`grn data`: published lists of transcription factors and regulons, by name; many files of cells
as one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import EVERYWHERE

app = typer.Typer(
    help="Published lists of transcription factors, and known regulons (list, get); many files as "
    "one (shard)."
)


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", epilog=EVERYWHERE)
def list_() -> None:
    """Print the lists that --regulators takes by name, and the regulons that --regulons does."""
    from grn.cells.genes.lists import LISTS, REGULONS, path_of
    from grn.cli.console import print_table

    for title, lists in (
        ("Transcription factors (--regulators)", LISTS),
        ("Known regulons (--regulons)", REGULONS),
    ):
        rows = [
            [e.name, e.species, e.names, "yes" if path_of(e.name).is_file() else "no"]
            for e in lists.values()
        ]
        print_table(title, ["name", "species", "names", "here"], rows)


@app.command("get", epilog=EVERYWHERE)
def get(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name of grn data list.", show_default=False)
    ],
    file: Annotated[
        Path | None,
        typer.Option("--file", help="A copy of the list, where this machine cannot download it."),
    ] = None,
) -> None:
    """Download a list, check it, and keep it for use by its name."""
    from grn.cells.genes.lists import get_list, known, path_of
    from grn.cli.console import console, plain

    names, wanted, say = get_list(name, file), known(name), plain(console())
    say(
        f"{name}: {wanted.size(len(names))} of {wanted.species} ({wanted.names}), kept in "
        f"{path_of(name)}."
    )
    say(f"Source: {wanted.source}. Licence: {wanted.licence}.")
    use = (
        f"activity cells.h5ad --regulons {name} --by COLUMN"
        if wanted.edges
        else f"train cells.h5ad --regulators {name}"
    )
    say(f"Use it with: grn {use}")


@app.command("shard", epilog=EVERYWHERE)
def shard(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...", help="Cells in any format but text.", show_default=False
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", help="The .zarr folder, or .h5ad file, to make.")
    ],
) -> None:
    """Join files of cells by gene name into one, which grn train reads without holding all of it in
    memory.
    """
    from grn.cli.tables import refuse_output

    refuse_output(output, (".zarr", ".h5ad"))

    from grn.cells.shards import shard as join
    from grn.cli.console import console, plain

    join(files, output, plain(console()))
