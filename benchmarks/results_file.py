"""Tables of results as files that grow: the rows of a run replace earlier rows of the same keys,
others stay.

And the device and the software that a benchmark ran on.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    import torch


def merged(path: Path, found: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The rows of the CSV file at `path`, if there is one, and those of `found`, which replace rows
    of equal keys.
    """
    if not path.exists():
        return found.reset_index(drop=True)
    before = pd.read_csv(path)
    keys = list(keys)
    unlike = [key for key in keys if key not in before]
    if unlike:
        raise SystemExit(
            f"{path} has no column {unlike[0]!r}, so it holds another table; give another --output."
        )
    kept = before[~before.set_index(keys).index.isin(found.set_index(keys).index)]
    return (
        pd.concat([kept, found], ignore_index=True) if len(kept) else found.reset_index(drop=True)
    )


def ordered(table: pd.DataFrame, **order: Sequence[str]) -> pd.DataFrame:
    """Rows sorted by the named columns, each in the order given; values that are not listed come
    last.
    """
    positions = {
        column: table[column]
        .map({name: position for position, name in enumerate(names)})
        .fillna(len(names))
        for column, names in order.items()
    }
    rows = pd.DataFrame(positions).sort_values(list(order), kind="stable").index
    return table.loc[rows].reset_index(drop=True)


def write(path: Path, table: pd.DataFrame) -> None:
    """Writes the file whole or not at all, because earlier rows may have taken hours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    table.to_csv(temporary, index=False, float_format="%.6g")
    os.replace(temporary, path)


def versions(device: torch.device) -> dict[str, str]:
    """The device's name, and the releases of torch and Triton ("": none)."""
    import torch

    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = ""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": name, "torch": torch.__version__, "triton": triton}
