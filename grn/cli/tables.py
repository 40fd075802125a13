"""Tables of results as files: .csv and .parquet, whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def refuse_output(output: Path | None, endings: Sequence[str] = (".csv", ".parquet")) -> None:
    """Raises a UserError where the file exists or cannot be written, or its name has none of the endings."""
    from grn.errors import ConfigError, RunFolderError
    from grn.io.atomic import refuse_unwritable

    if output is None:
        return
    if output.exists():
        raise RunFolderError(
            f"{output} already exists and is not overwritten; give {{field}} another name.", field="output"
        )
    if output.suffix not in endings:
        raise ConfigError(f"{{field}} is {output}; give a name that ends in {' or '.join(endings)}.", field="output")
    refuse_unwritable(output)


def write(table: pd.DataFrame, output: Path) -> None:
    """The file `output`, completely or not at all; names that a spreadsheet would run as formulas get an apostrophe."""
    from grn.io.atomic import replacing_file
    from grn.io.tables import spreadsheet_safe

    with replacing_file(output) as beside:
        if output.suffix == ".csv":
            spreadsheet_safe(table).to_csv(beside, index=False, float_format="%.6g")
        else:
            table.to_parquet(beside, index=False)
