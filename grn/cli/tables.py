"""Files of results: names that are refused, and tables as .csv or .parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console


def refuse_output(output: Path | None, endings: Sequence[str] = (".csv", ".parquet")) -> None:
    """Raise RunFolderError where the file exists or cannot be written, or its name has none of the
    endings.

    output: None: nothing is written, and nothing refused.
    """
    from grn.runtime.atomic import refuse_unwritable
    from grn.runtime.errors import RunFolderError

    if output is None:
        return
    if output.exists() or output.suffix not in endings:
        found = "already exists" if output.exists() else f"ends in none of {', '.join(endings)}"
        raise RunFolderError(
            f"{{field}} is {output}, which {found}; give another name.", field="output"
        )
    refuse_unwritable(output)


def pairs_of(texts: Sequence[str] | None, field: str) -> dict[str, str]:
    """Return texts of the form NAME=VALUE as a mapping.

    field: the option that has them.
    Raises ConfigError, also for a name that comes twice.
    """
    from grn.runtime.errors import ConfigError

    found = dict(text.partition("=")[::2] for text in texts or ())
    if not all(found.values()) or len(found) < len(texts or ()):
        raise ConfigError("{field} takes NAME=VALUE, each name once", field=field)
    return found


def write(table: pd.DataFrame, output: Path, to: Console) -> None:
    """Write a table as .csv or .parquet, completely or not at all, and print where it is.

    In a .csv, names that a spreadsheet would run as formulas get an apostrophe.
    """
    from grn.runtime.atomic import replacing_file
    from grn.runtime.tables import spreadsheet_safe

    with replacing_file(output) as beside:
        if output.suffix == ".csv":
            spreadsheet_safe(table).to_csv(beside, index=False, float_format="%.6g")
        else:
            table.to_parquet(beside, index=False)
    to.print(f"\nTable: {output}", markup=False)
