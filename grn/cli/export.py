"""`grn export`: a run's network as a file for another program, or read again in another way."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import Debug, Quiet
from grn.networks.formats.registry import FORMATS


class Sign(StrEnum):
    up = "up"
    down = "down"


class Value(StrEnum):
    score = "score"
    weight = "weight"
    absolute = "absolute"
    effect = "effect"


class Readout(StrEnum):
    effect = "effect"
    attention = "attention"
    knockout = "knockout"
    jacobian = "jacobian"


FILES = {Path(f"name{each.ending}").suffix for each in FORMATS.values()}  # how files of edges are named


def number_or_all(value: str) -> str:
    if value != "all" and not (value.isascii() and value.isdigit() and int(value)):
        raise typer.BadParameter(f"{value!r} is neither 'all' nor a number of cells, 1 or more")
    return value


def command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of grn train.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", help="The file to write; without --format, the folder to make.")],
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join([*FORMATS, "huggingface"]),
            help="Write the edges as one file for another program; huggingface: the model as a folder with a card. "
            "Default: a folder with network.h5ad and edges.parquet.",
        ),
    ] = None,
    readout: Annotated[
        Readout | None,
        typer.Option("--readout", help="The read-out: what an edge's weight is. Default: as the run was configured."),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", min=1, help="Number of regulators to keep for each target. Default: as configured."),
    ] = None,
    min_weight: Annotated[
        float | None, typer.Option("--min-weight", min=0, help="With --format: least size of a weight.")
    ] = None,
    min_confidence: Annotated[
        float | None, typer.Option("--min-confidence", min=0, max=1, help="With --format: least confidence.")
    ] = None,
    max_q_value: Annotated[
        float | None, typer.Option("--max-q-value", min=0, max=1, help="With --format: largest q-value.")
    ] = None,
    sign: Annotated[
        Sign | None, typer.Option("--sign", help="With --format: edges that raise their target, or that lower it.")
    ] = None,
    regulators: Annotated[
        str | None,
        typer.Option(
            "--regulators",
            metavar="FILE|NAME,NAME,...",
            help="With --format: the edges of these regulators; a file has one a line.",
        ),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            "--targets",
            metavar="FILE|NAME,NAME,...",
            help="With --format: the edges into these genes; a file has one a line.",
        ),
    ] = None,
    cells: Annotated[
        str | None,
        typer.Option(
            "--cells",
            metavar="NUMBER|all",
            parser=number_or_all,
            help="About how many cells --layer, knockout and jacobian average over. Default: as configured.",
        ),
    ] = None,
    cell_type: Annotated[
        str | None,
        typer.Option("--cell-type", metavar="LABEL", help="Write the network of this type (state) of cells alone."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by", metavar="COLUMN", help="Networks of the groups in this column of obs, instead of the run's states."
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            "--layer", metavar="NUMBER", help="With --format: the attention of this layer of the transformer, from 0."
        ),
    ] = None,
    head: Annotated[
        int | None,
        typer.Option("--head", metavar="NUMBER", help="With --layer: of this head. Default: the mean over heads."),
    ] = None,
    value: Annotated[
        Value | None,
        typer.Option(
            "--value",
            help="With --layer: score, q.k of the first layer, without cells; weight, the mean normalised weight of a "
            "head; absolute, the mean of its size; effect, what the messages do to predictions, up or down. "
            "Default: absolute.",
        ),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a run's network for another program, or read it again: another read-out, one cell type, other groups."""
    from grn.errors import ConfigError

    filters = {
        "min_weight": min_weight,
        "min_confidence": min_confidence,
        "max_q_value": max_q_value,
        "sign": sign.value if sign else None,
        "regulators": regulators,
        "targets": targets,
    }
    given = [name for name, value in filters.items() if value is not None]
    if format is None and given:
        option = "--" + given[0].replace("_", "-")
        raise ConfigError(f"{option} chooses the edges of one file; name its format with --format, as --format csv.")

    if format == "huggingface":
        others = {"readout": readout, "top_k": top_k, "cells": cells, "cell_type": cell_type, "by": by, "layer": layer}
        if given := [*given, *(name for name, value in others.items() if value is not None)]:
            option = "--" + given[0].replace("_", "-")
            raise ConfigError(f"--format huggingface writes the whole model; leave out {option}.")

        from grn.analysis.model_card import export_model
        from grn.cli.console import console, plain

        export_model(folder, output, plain(console()))
        return

    if layer is None and (head is not None or value not in (None, Value.effect)):
        raise ConfigError("--head and --value are of one layer of the transformer; give --layer, too.")
    if layer is not None and (format is None or readout is not None or by is not None):
        raise ConfigError(
            "--layer writes the attention of one layer as one file; give --format, and leave out --readout and --by."
        )
    if format is None and output.suffix.lower() in FILES:
        raise ConfigError(
            f"--output is {output}, named like a file, but without --format a folder is made; give one, as --format "
            "csv, or another name."
        )

    from grn.cli.console import console, plain

    say = plain(console())
    changes = {"readout": readout.value if readout else None, "cells": cells}
    if format is None:
        from grn.networks.export import export

        known = {name: value for name, value in {**changes, "top_k": top_k}.items() if value is not None}
        export(folder, output, changes=known, cell_type=cell_type, by=by, say=say)
        return

    from grn.networks.formats.chosen import Filters
    from grn.networks.formats.registry import check_name
    from grn.networks.formats.write import chosen_genes, export_file
    from grn.networks.readouts.blocks.one_layer import LayerChoice

    check_name(format, output)
    names = {"regulators": chosen_genes(regulators, "--regulators"), "targets": chosen_genes(targets, "--targets")}
    of_layer = None if layer is None else LayerChoice(layer, head, "absolute" if value is None else value.value)
    export_file(
        folder,
        output,
        format,
        Filters(**{**filters, **names}, top_k=top_k),  # type: ignore[arg-type]
        cell_type=cell_type,
        changes={name: value for name, value in changes.items() if value is not None},
        by=by,
        layer=of_layer,
        say=say,
    )
