"""The input of the peers, and a file of such sets that needs nothing but numpy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FIELDS = ("values", "genes", "regulators", "hash")


@dataclass(frozen=True, eq=False)
class PreparedSet:
    """values [C, N] float32, the names of the N genes and of the regulators among them, and NetworkSet.hash."""

    name: str
    values: np.ndarray
    genes: list[str]
    regulators: list[str]
    hash: str


def save_prepared(path: Path, sets: Iterable[PreparedSet]) -> None:
    """One compressed .npz with `<set>/<field>` entries, texts as arrays of characters: nothing in it is pickled."""
    if path.suffix != ".npz":
        raise SystemExit(f"The name of the file must end in .npz, and {path.name} does not.")
    np.savez_compressed(
        path, **{f"{one.name}/{name}": np.asarray(getattr(one, name)) for one in sets for name in FIELDS}
    )


def load_prepared(path: Path) -> list[PreparedSet]:
    with np.load(path, allow_pickle=False) as file:
        names = list(dict.fromkeys(entry.rsplit("/", 1)[0] for entry in file.files))
        return [
            PreparedSet(
                name,
                file[f"{name}/values"],
                file[f"{name}/genes"].tolist(),
                file[f"{name}/regulators"].tolist(),
                str(file[f"{name}/hash"]),
            )
            for name in names
        ]
