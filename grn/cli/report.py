"""`grn report`: writes the report of a finished run again."""

from __future__ import annotations

from typing import Annotated

import typer

from grn.cli.options import RunFolder


def command(
    run: RunFolder,
    regulons: Annotated[
        str | None,
        typer.Option(
            "--regulons",
            metavar="NAME|FILE",
            help="Known regulons that name the drivers: collectri (grn data get collectri), or a "
            "table of pairs with signs. Default: those of the run.",
        ),
    ] = None,
) -> None:
    """Write report.html of a finished run again, as this version writes it; --regulons: by known
    regulons.
    """
    from grn.cli.console import console, plain
    from grn.features.run import load, trained_of, write_report_of

    opened, say = load(run), plain(console())
    if regulons is not None:
        from grn.features.activity.of_run import report_with

        report_with(opened.folder, opened.config, trained_of(opened), regulons, say)
    say(f"Report: {write_report_of(opened)}")
