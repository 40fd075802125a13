"""`grn perturb`: what a trained model expects of knock-outs, knock-downs and overexpression."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import Debug, Quiet

PRINTED = 15


class Kind(StrEnum):
    knockout = "knockout"
    knockdown = "knockdown"
    overexpress = "overexpress"


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of grn train.", show_default=False)],
    knock_out: Annotated[
        list[str] | None, typer.Option("--knock-out", metavar="GENE", help="A regulator to knock out; may be repeated.")
    ] = None,
    knock_down: Annotated[
        list[str] | None,
        typer.Option("--knock-down", metavar="GENE", help="A regulator of which a part of the counts is left."),
    ] = None,
    overexpress: Annotated[
        list[str] | None, typer.Option("--overexpress", metavar="GENE", help="A regulator that is raised in all cells.")
    ] = None,
    screen: Annotated[
        Kind | None,
        typer.Option(
            "--screen",
            help="Perturb every regulator in turn in cells of --cell-type, ranked by how far these move --towards.",
        ),
    ] = None,
    towards: Annotated[
        str | None, typer.Option("--towards", metavar="LABEL", help="The cell type that a screen goes to.")
    ] = None,
    cell_type: Annotated[
        str | None, typer.Option("--cell-type", metavar="LABEL", help="Perturb the cells of this type. Default: all.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="COLUMN=VALUE", help="Only cells with this value in obs; may be repeated."),
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", help="Steps of propagation: 1 reads direct effects, 20 nearly all that follows.")
    ] = 1,
    remaining: Annotated[
        float, typer.Option("--remaining", help="Share of a knocked-down gene's counts that is left.")
    ] = 0.5,
    quantile: Annotated[
        float,
        typer.Option("--quantile", help="Overexpression raises a gene to this quantile among the cells that have it."),
    ] = 0.95,
    basis: Annotated[
        str | None,
        typer.Option("--basis", metavar="X_UMAP", help="With an .h5ad: an embedding in obsm for the cells' shifts."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="The file to write: a table (.csv, .parquet), or cells with changes (.h5ad)."),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict what changes when regulators are knocked out, knocked down or overexpressed in chosen cells."""
    from grn.cli.console import console, plain, print_table
    from grn.cli.tables import refuse_output, write
    from grn.errors import ConfigError
    from grn.io.atomic import refuse_unwritable
    from grn.io.h5ad import write_anndata

    if output is not None:
        refuse_output(output, "perturb", (".csv", ".parquet") if screen else (".csv", ".parquet", ".h5ad"))
        refuse_unwritable(output)
    named = [*(knock_out or ()), *(knock_down or ()), *(overexpress or ())]
    if screen and (named or where):
        raise ConfigError(
            "A screen perturbs each regulator by itself in all cells of a type; name no gene and no --where."
        )
    if screen and (cell_type is None or towards is None):
        raise ConfigError("A screen goes from one cell type to another; give both --cell-type and --towards.")
    if screen and (remaining, quantile) != (0.5, 0.95):
        raise ConfigError(
            "A screen leaves half of the counts, or raises to the quantile 0.95; leave out --remaining and --quantile."
        )
    if towards is not None and not screen:
        raise ConfigError("--towards belongs to a screen; add --screen knockout, or leave it out.")
    if basis is not None and (output is None or output.suffix != ".h5ad"):
        raise ConfigError("--basis is for shifts of cells, which an .h5ad holds; give --output a name that ends so.")

    from grn.analysis.perturbation.perturb import perturb_cells, perturbed_anndata
    from grn.analysis.perturbation.screen import screen_regulators
    from grn.analysis.perturbation.subject import Subject
    from grn.analysis.perturbation.what_is_done import Plan

    to = console()
    if screen and cell_type is not None and towards is not None:
        subject = Subject.of_run(run)
        table = screen_regulators(subject, cell_type, towards, kind=screen.value, steps=steps, say=plain(to))
        title = f"Each regulator by itself: {screen.value} in {cell_type}, share of the way towards {towards}"
        print_table(title, list(table), table.head(PRINTED).itertuples(index=False), to)
    else:
        genes = (tuple(knock_out or ()), tuple(knock_down or ()), tuple(overexpress or ()))
        plan = Plan(*genes, remaining=remaining, quantile=quantile)
        chosen = _conditions(where or [])
        subject = Subject.of_run(run)
        found = perturb_cells(subject, plan, subject.rows(cell_type, chosen), steps)
        table = found.table
        to.print(
            f"{plan.described()} in {len(found.rows)} cells, {steps} {'step' if steps == 1 else 'steps'}: mean changes "
            "of the expected multiplicities (effect: in sds of the gene; sd: of the effect over members).",
            markup=False,
        )
        print_table("Strongest changes", list(table), table.head(PRINTED).itertuples(index=False), to)
        if output is not None and output.suffix == ".h5ad":
            write_anndata(output, perturbed_anndata(subject, plan, found, steps, basis))
    if output is not None:
        if output.suffix != ".h5ad":
            write(table, output)
        to.print(f"\n{'Cells' if output.suffix == '.h5ad' else 'Table'}: {output}", markup=False)


def _conditions(where: list[str]) -> dict[str, str]:
    """COLUMN=VALUE, each of them, as a mapping. Raises ConfigError."""
    from grn.errors import ConfigError

    chosen: dict[str, str] = {}
    for text in where:
        column, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--where is {text!r}; write COLUMN=VALUE, as --where condition=stim.")
        if column in chosen:
            raise ConfigError(f"--where names the column {column!r} twice; a cell has one value in it, so give one.")
        chosen[column] = value
    return chosen
