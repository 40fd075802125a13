"""`grn evaluate`: scores any network against any reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import REFERENCE, CellType

PERMUTATIONS, SEED = 1000, 0  # others, and other networks of a network.h5ad: grn.evaluate


def command(
    network: Annotated[
        Path,
        typer.Argument(
            help="The network: a run folder, edges.parquet, network.h5ad, or a csv or tsv of "
            "GRNBoost2, GENIE3, BEELINE or decoupler.",
            show_default=False,
        ),
    ],
    reference: Annotated[Path | None, REFERENCE] = None,
    regulators: Annotated[
        str,
        typer.Option(
            metavar="reference|all|FILE",
            help="The regulators whose edges are scored: those of the reference, all genes of it, "
            "or those in a file.",
        ),
    ] = "reference",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG|RUN|CELLS|none",
            help="Cells from which Pearson and ridge are computed: a configuration, a run folder, "
            "or anything that data.path takes. Default: the cells of the run, where NETWORK is a "
            "run folder.",
        ),
    ] = None,
    cell_type: CellType = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="The folder to make, for evaluation.csv, evaluation.txt, precision_recall.png "
            "and, where cell types are scored, evaluation_types.csv.",
        ),
    ] = None,
    interventions: Annotated[
        bool,
        typer.Option(
            "--interventions",
            help="Instead of a reference: what the run NETWORK expects of interventions, against "
            "its test cells.",
        ),
    ] = False,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GENE",
            help="With --interventions: train again without this intervention (A+B: without cells "
            "with both; all: each in turn), and predict it; may be repeated.",
        ),
    ] = None,
) -> None:
    """Score a network against known edges (early precision, AUPRC, signs), with Pearson and ridge
    for comparison.
    """
    from grn.runtime.errors import ConfigError

    if interventions == (reference is not None) or (leave_out and not interventions):
        raise ConfigError(
            "Give either a REFERENCE of true edges, or --interventions (with --leave-out, if you "
            "like)."
        )
    if reference is None:
        _of_interventions(network, leave_out or [], output)
        return
    from grn.runtime.atomic import refuse_used_folder, replacing_folder, write_text

    if output is not None:
        refuse_used_folder(output)

    from grn.cli.console import console, print_table
    from grn.features.evaluate.api import cells_behind, cells_of_network, reference_of
    from grn.features.evaluate.comparison import TYPE_SCORES, compare_networks, score_table
    from grn.features.evaluate.scores import SCORES
    from grn.features.given_networks import predicted_network
    from grn.plots.scores import precision_recall_curves
    from grn.plots.style import save
    from grn.runtime.messages import kept_in

    to, notes = console(), list[str]()
    say = kept_in(notes, to.quiet)
    if data is None:
        cells = cells_of_network(network, say)
    else:
        cells = None if data.casefold() == "none" else cells_behind(data, network)
    found = compare_networks(
        predicted_network(network),
        reference_of(reference),
        cells,
        regulators=regulators,
        genes=None,
        cell_type=cell_type,
        permutations=PERMUTATIONS,
        seed=SEED,
        say=say,
    )
    scores = score_table(found.evaluations)
    of_type = "" if cell_type is None else f", cell type {cell_type}"
    to.print()
    shown = scores.dropna(subset=[*found.evaluations], how="all").replace({"score": SCORES})
    print_table(
        f"{network} against {reference}{of_type}", list(shown), shown.itertuples(index=False), to
    )
    if found.types is not None:
        to.print()
        columns = ["cell type", "method", *TYPE_SCORES.values()]
        print_table(
            "Each cell type against its own edges", columns, found.types.itertuples(index=False), to
        )
    if output is None:
        return
    curves = {name: evaluation.curve for name, evaluation in found.evaluations.items()}
    with replacing_folder(output) as folder:
        write_text(
            folder / "evaluation.txt",
            "\n".join([f"{network} against {reference}{of_type}", *notes, ""]),
        )
        write_text(folder / "evaluation.csv", scores.to_csv(index=False))
        if found.types is not None:
            write_text(folder / "evaluation_types.csv", found.types.to_csv(index=False))
        density = found.evaluations["network"].universe.density
        save(precision_recall_curves(curves, density), folder / "precision_recall.png")
    to.print(f"\nTables and figure: {output}", markup=False)


def _of_interventions(run: Path, leave_out: list[str], output: Path | None) -> None:
    """Print how well a run predicts interventions in its test cells (--interventions)."""
    from grn.cli.tables import refuse_output, write

    refuse_output(output)
    import pandas as pd

    from grn.cli.console import console, print_table
    from grn.features.interventions.api import evaluate_interventions

    to = console()
    table = evaluate_interventions(run, leave_out=leave_out, quiet=to.quiet)
    mean = table.drop(columns="intervention").groupby("method", sort=False).mean().reset_index()
    print_table("Each intervention", list(table), table.round(3).itertuples(index=False), to)
    to.print()
    print_table("Mean over interventions", list(mean), mean.round(3).itertuples(index=False), to)
    if networks := table.attrs.get("networks"):
        to.print()
        judged = pd.DataFrame(networks).round(3)
        print_table(
            "Networks, in the run's test cells", list(judged), judged.itertuples(index=False), to
        )
    if output is not None:
        write(table, output, to)
