"""Tables of results as files: .csv and .parquet, whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def refuse_output(output: Path, command: str, endings: Sequence[str] = (".csv", ".parquet")) -> None:
    """Raises an error where the file exists, or where its name has none of the endings that the command writes."""
    from grn.errors import ConfigError, RunFolderError

    if output.exists():
        raise RunFolderError(f"{output} already exists and is not overwritten; give --output another name.")
    if output.suffix not in endings:
        listed = " and ".join(filter(None, [", ".join(endings[:-1]), endings[-1]]))
        raise ConfigError(f"--output is {output}, but {command} writes {listed}; give a name that ends so.")


def write(table: pd.DataFrame, output: Path) -> None:
    """The file `output`, completely or not at all."""
    from grn.errors import RunFolderError
    from grn.io.atomic import replacing_file

    try:
        with replacing_file(output) as beside:
            if output.suffix == ".csv":
                table.to_csv(beside, index=False, float_format="%.6g")
            else:
                table.to_parquet(beside, index=False)
    except OSError as error:
        raise RunFolderError(
            f"{output} cannot be written ({error.strerror}); give --output a place that can be."
        ) from None
