"""`grn benchmark`: a table of methods on one's own cells and reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import REFERENCE


def command(
    cells: Annotated[
        str,
        typer.Argument(metavar="CELLS", help="Cells (counts in X), a configuration or a run.", show_default=False),
    ],
    reference: Annotated[Path, REFERENCE],
) -> None:
    """Infer networks by grn, Pearson and ridge from your cells, and score all of them against known edges."""
    from grn.analysis.evaluate import SCORES
    from grn.cli.console import console, print_table
    from grn.config.files import is_configuration, load_config
    from grn.verbs.benchmark import benchmark

    to = console()
    source = load_config(cells) if is_configuration(cells) else cells
    table = benchmark(source, reference, quiet=to.quiet).reset_index()
    titles = [SCORES.get(name, name) for name in table]
    print_table(f"Networks of {cells} against {reference}", titles, table.itertuples(index=False), to)
