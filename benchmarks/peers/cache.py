"""A cache of inferred networks: a table, its time and memory, under a key of everything that decides the result."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from peers.prepared import PreparedSet

# Raise when a peer's numbers change though its settings do not.
REVISION = 1


@dataclass(frozen=True)
class Entry:
    """`<set>-<method>-<key>.csv` (source, target, weight) and the same name with .json (settings, time, memory)."""

    table: Path
    notes: Path

    def exists(self) -> bool:
        return self.table.exists() and self.notes.exists()

    def read(self) -> tuple[pd.DataFrame, dict[str, Any]]:
        # A gene may be called NA.
        types = {"source": str, "target": str, "weight": float}
        table = pd.read_csv(self.table, dtype=types, keep_default_na=False)
        return table, json.loads(self.notes.read_text("utf-8"))

    def write(self, network: pd.DataFrame, notes: Mapping[str, Any]) -> None:
        """Writes the notes last, because an entry without notes does not exist."""
        self.table.parent.mkdir(parents=True, exist_ok=True)
        _replace(self.table, network.to_csv(index=False, float_format="%.9g"))
        _replace(self.notes, json.dumps(notes, indent=2) + "\n")


def entry(folder: Path, one: PreparedSet, method: str, settings: Mapping[str, Any], seed: int) -> Entry:
    """The entry of the network that `method` infers from `one` with these settings and this seed."""
    decisive = {
        "data": one.hash,
        "regulators": one.regulators,
        "method": method,
        "settings": dict(settings),
        "seed": seed,
        "revision": REVISION,
    }
    key = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]
    stem = f"{one.name}-{method}-{key}"
    return Entry(folder / f"{stem}.csv", folder / f"{stem}.json")


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
