"""`grn init`: a commented configuration for one's own cells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer


def command(
    path: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="The cells: anything that data.path takes.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", help="The configuration to write. Default: NAME.yaml, here."),
    ] = None,
) -> None:
    """Write a configuration for these cells: every field with its default and reason, and what was
    found in them.
    """
    from grn.cli.tables import refuse_output
    from grn.runtime.atomic import write_text

    name = re.sub(r"[^\w.-]+", "_", Path(path).stem).strip("_") or "cells"
    output = output or Path(f"{name}.yaml")
    refuse_output(output, (".yaml", ".yml"))

    from grn.cells.describe import describe
    from grn.cli.console import console, plain
    from grn.config.files import shipped_configs
    from grn.config.strict_yaml import dump_yaml

    found = describe(path)
    text = (shipped_configs() / "own_data.yaml").read_text("utf-8")
    for field, value in found.fields.items():
        line = f"  {dump_yaml({field: value}).strip()}".replace("\\", r"\\")
        text = re.sub(rf"^  {field}: .*$", line, text, count=1, flags=re.MULTILINE)
    write_text(output, text)
    for sentence in [
        *found.sentences,
        f"Wrote {output}; set data.regulators in it, then: grn train {output}",
    ]:
        plain(console())(sentence)
