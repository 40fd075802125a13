"""`grn evaluate`: scores any network against any reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grn.cli.options import Debug, Quiet
from grn.errors import reworded

if TYPE_CHECKING:
    from grn.analysis.evaluation.comparison import Comparison

OPTIONS = {
    "set data.path to a file or to": "give --data a file or",
    "set data.orientation to": "give --data a configuration with data.orientation:",
    "set data.": "in a configuration for --data, set data.",
}


def command(
    network: Annotated[
        Path,
        typer.Argument(
            help="The network: a run folder, edges.parquet, network.h5ad, or a csv or tsv of GRNBoost2, GENIE3, "
            "BEELINE or decoupler.",
            show_default=False,
        ),
    ],
    reference: Annotated[
        Path,
        typer.Argument(
            help="The true edges: a csv or tsv of BEELINE, TRRUST or decoupler, or the truth.csv of a simulated run; "
            "with a column cell_type, the network of each type is scored, too.",
            show_default=False,
        ),
    ],
    regulators: Annotated[
        str,
        typer.Option(
            "--regulators",
            metavar="reference|all|FILE",
            help="The regulators whose edges are scored: those of the reference, all genes of it, or those in a file.",
        ),
    ] = "reference",
    genes: Annotated[
        str | None,
        typer.Option(
            "--genes",
            metavar="reference|network|data|FILE",
            help="The genes whose edges are scored. Default: those of the data or run, else those of the reference.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="CONFIG|RUN|CELLS|none",
            help="Cells from which Pearson and ridge are computed: a configuration, a run folder, or anything that "
            "data.path takes. Default: the cells of the run, where NETWORK is a run folder.",
        ),
    ] = None,
    cell_type: Annotated[
        str | None,
        typer.Option(
            "--cell-type",
            metavar="LABEL",
            help="Score the network of this cell type alone, against its edges where the reference has a column "
            "cell_type. Default: the network over all cells, then that of each type of such a reference.",
        ),
    ] = None,
    key: Annotated[
        str,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Which network of network.h5ad is scored: a key of its varp, as grn_attention_layer1.",
        ),
    ] = "grn",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="The folder to make, for evaluation.json, evaluation.csv, precision_recall.png and, where cell types "
            "are scored, evaluation_types.csv.",
        ),
    ] = None,
    permutations: Annotated[
        int,
        typer.Option(
            "--permutations", min=0, max=10**6, help="Number of permutations for the p-values; 0: no p-values."
        ),
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the permutations.")] = 0,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Score a network against known edges (early precision, AUPRC, signs), with Pearson and ridge for comparison."""
    from grn.io.atomic import refuse_used_folder

    if output is not None:
        refuse_used_folder(output)

    from grn.analysis.evaluation.comparison import compare, printed_rows, score_table
    from grn.analysis.evaluation.type_scores import TYPE_SCORES, printed_type_rows
    from grn.cli.console import console, plain, print_table

    to = console()
    with reworded(OPTIONS):
        found = compare(
            network,
            reference,
            regulators=regulators,
            genes=genes,
            data=data,
            cell_type=cell_type,
            key=key,
            permutations=permutations,
            seed=seed,
            say=plain(to),
        )
    methods = list(found.evaluations)
    to.print()
    of_type = "" if cell_type is None else f", cell type {cell_type}"
    of_type = of_type if key == "grn" else f", {key}"
    print_table(
        f"{network} against {reference}{of_type}",
        ["score", methods[0], "p", *methods[1:]],
        printed_rows(score_table(found.evaluations)),
        to,
    )
    if found.types is not None:
        to.print()
        columns = ["cell type", "method", *TYPE_SCORES.values()]
        print_table("Each cell type against its own edges", columns, printed_type_rows(found.types), to)
    if output is not None:
        write(found, output)
        to.print(f"\nTables and figure: {output}", markup=False)


def write(found: Comparison, output: Path) -> None:
    """evaluation.json, evaluation.csv, precision_recall.png and, with cell types, evaluation_types.csv in the folder
    `output`: all of them, or none."""
    from grn.analysis.evaluation.comparison import as_json, score_table
    from grn.errors import RunFolderError
    from grn.io.atomic import replacing_folder, write_text
    from grn.plots.run.precision_recall import precision_recall_curves
    from grn.plots.style import save

    curves = {name: evaluation.curve for name, evaluation in found.evaluations.items()}
    density = found.evaluations["network"].universe.density
    try:
        with replacing_folder(output) as folder:
            write_text(folder / "evaluation.json", as_json(found))
            write_text(folder / "evaluation.csv", score_table(found.evaluations).to_csv(index=False))
            if found.types is not None:
                write_text(folder / "evaluation_types.csv", found.types.to_csv(index=False))
            save(precision_recall_curves(curves, density), folder / "precision_recall.png")
    except FileNotFoundError as refused:  # in some file systems, such as /proc, no folder can be made
        raise RunFolderError(
            f"{output} cannot be made ({refused.strerror}); give --output a folder that can be written to."
        ) from None
