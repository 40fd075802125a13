"""`grn perturb`: what a trained model expects of knock-outs, knock-downs and overexpression."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import CellType, RunFolder

PRINTED = 15


def command(
    run: RunFolder,
    knock_out: Annotated[
        list[str] | None,
        typer.Option(metavar="GENE", help="A regulator to knock out; may be repeated."),
    ] = None,
    knock_down: Annotated[
        list[str] | None,
        typer.Option(metavar="GENE", help="A regulator of which half is left."),
    ] = None,
    overexpress: Annotated[
        list[str] | None,
        typer.Option(metavar="GENE", help="A regulator that is raised in all cells."),
    ] = None,
    towards: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="A screen: knock out every regulator in turn in cells of --cell-type, ranked by "
            "how far these move towards this type.",
        ),
    ] = None,
    cell_type: CellType = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE", help="Only cells with this value in obs; may be repeated."
        ),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            help="Steps of propagation: 1 reads direct effects, 20 nearly all that follows."
        ),
    ] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            help="The file to write: a table (.csv, .parquet), or cells with changes (.h5ad)."
        ),
    ] = None,
) -> None:
    """Predict what changes when regulators are knocked out, knocked down or overexpressed in chosen
    cells.

    Genes with a certain edge have changes that are not shrunk, with 95 % intervals (low, high).
    They are sizes of associations, not of causes.
    """
    from grn.cli.tables import pairs_of, refuse_output, write
    from grn.runtime.errors import ConfigError

    refuse_output(output, (".csv", ".parquet") if towards else (".csv", ".parquet", ".h5ad"))
    if towards and (cell_type is None or knock_out or knock_down or overexpress or where):
        raise ConfigError(
            "A screen (--towards) perturbs each regulator by itself in all cells of --cell-type; "
            "give that and no gene."
        )
    chosen = pairs_of(where, "where")

    from grn.cli.console import console, print_table
    from grn.features.perturb.api import perturb, screen

    to = console()
    if towards and cell_type:
        table = screen(run, cell_type, towards, steps=steps, quiet=to.quiet)
        title = (
            f"Each regulator by itself: knock-out in {cell_type}, share of the way towards "
            f"{towards}"
        )
    else:
        cells = perturb(
            run,
            knock_out=knock_out or (),
            knock_down=knock_down or (),
            overexpress=overexpress or (),
            cell_type=cell_type,
            where=chosen,
            steps=steps,
        )
        to.print(
            f"{cells.uns['grn_perturb']['perturbation']} in {cells.n_obs} cells, {steps} "
            f"{'step' if steps == 1 else 'steps'}: mean changes of the expected multiplicities "
            "(effect: in sds of the gene; sd: of the effect over members).",
            markup=False,
        )
        if sizes := cells.uns["grn_perturb"].get("sizes"):
            to.print(sizes, markup=False)
        table = (
            cells.var.rename(columns=lambda name: name.removeprefix("grn_"))
            .rename_axis("gene")
            .reset_index()
        )
        by = table if "size" in table else table.assign(size=table["effect"].abs())
        table = table.loc[
            by.sort_values(["perturbed", "size"], ascending=False, kind="stable").index
        ]
        title = "Strongest changes"
        if len(never := cells.uns["grn_perturb"].get("never_intervened", ())):
            to.print(
                f"{', '.join(never)}: no cell of this run had this intervention. What is expected "
                "is learned from the interventions that were made and from what goes with the gene "
                "in the cells; it need not be what the gene causes.",
                markup=False,
            )
    print_table(title, list(table), table.head(PRINTED).itertuples(index=False), to)
    if output is not None and output.suffix == ".h5ad":
        from grn.runtime.h5ad import write_anndata

        write_anndata(output, cells)
        to.print(f"\nCells: {output}", markup=False)
    elif output is not None:
        write(table, output, to)
