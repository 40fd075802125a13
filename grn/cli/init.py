"""`grn init`: a commented configuration for one's own cells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import Debug, Orientation, Quiet
from grn.cli.train import is_configuration


def command(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="The cells: anything that data.path takes.", show_default=False)
    ],
    output: Annotated[
        Path | None, typer.Option("--output", help="The configuration to write. Default: NAME.yaml, here.")
    ] = None,
    orientation: Annotated[
        Orientation | None, typer.Option("--orientation", help="What the rows and columns of a text file are.")
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a configuration for these cells: every field with its default and reason, and what was found in them."""
    from grn.cli.console import console, plain
    from grn.errors import ConfigError, RunFolderError, reworded
    from grn.io.atomic import refuse_unwritable, write_text

    if is_configuration(data):
        raise ConfigError(f"{data} looks like a configuration, where cells are expected; grn train {data} starts it.")
    stem = re.sub(r"[^\w.-]+", "_", Path(data).stem).strip("_") or "cells"
    output = output or Path(f"{stem}.yaml")
    if output.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--output is {output}, but a configuration is a .yaml file; give a name that ends so.")
    if output.exists():
        raise RunFolderError(f"{output} already exists and is not overwritten; give --output another name.")
    refuse_unwritable(output)

    from grn.cells.describe import describe
    from grn.config.files import shipped_configs
    from grn.config.strict_yaml import dump_yaml

    with reworded(
        {
            "set data.path to a file or to": "give a file or",
            "set data.orientation to": "give --orientation",
            "set data.orientation: null": "leave it out",
            "data.orientation": "--orientation",
        }
    ):
        found = describe(data, orientation)
    text = (shipped_configs() / "own_data.yaml").read_text("utf-8")
    for field, value in found.fields.items():
        written = dump_yaml({field: value}).strip()
        line = f"  {written}".replace("\\", r"\\")
        text = re.sub(rf"^  {field}: .*$", line, text, count=1, flags=re.MULTILINE)
    text = text.replace("Copy this file, change data.path, and keep", "Written by grn init for these cells. Keep", 1)
    write_text(output, text)
    say = plain(console(quiet))
    for sentence in found.sentences:
        say(sentence)
    say(f"Wrote {output}; set data.regulators in it, and start with: grn train {output}")
