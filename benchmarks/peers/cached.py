"""One peer on one set: read from a cache of networks, or computed in a process of its own and
cached.

A set is a file that needs nothing but numpy. The cache holds a table, its time and memory, under a
key of everything that decides the result.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from peers import load, settings_of
from peers.measure import measured

FIELDS = ("values", "genes", "regulators", "hash")


@dataclass(frozen=True, eq=False)
class PreparedSet:
    """values [C, N] float32, the names of the N genes and of the regulators among them, and
    NetworkSet.hash.
    """

    name: str
    values: np.ndarray
    genes: list[str]
    regulators: list[str]
    hash: str


def save_prepared(path: Path, sets: Iterable[PreparedSet]) -> None:
    """One compressed .npz with `<set>/<field>` entries, texts as arrays of characters: nothing in
    it is pickled.
    """
    if path.suffix != ".npz":
        raise SystemExit(f"The name of the file must end in .npz, and {path.name} does not.")
    np.savez_compressed(
        path,
        **{f"{one.name}/{name}": np.asarray(getattr(one, name)) for one in sets for name in FIELDS},
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


# Raise when a peer's numbers change though its settings do not.
REVISION = 1


@dataclass(frozen=True)
class Entry:
    """`<set>-<method>-<key>.csv` (source, target, weight) and the same name with .json (settings,
    time, memory).
    """

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


def entry(
    folder: Path, one: PreparedSet, method: str, settings: Mapping[str, Any], seed: int
) -> Entry:
    """The entry of the network that `method` infers from `one` with the settings and the seed."""
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


class NotRun(RuntimeError):
    """The cache has no network of the peer for the set, and the peer cannot run; the message is the
    reason.
    """


def run_peer(
    name: str,
    one: PreparedSet,
    *,
    folder: Path,
    jobs: int = 1,
    seed: int = 0,
    changes: Iterable[str] = (),
    compute: bool = True,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The network (source, target, weight) and its notes: settings, seconds, memory, cores,
    versions, `cached`.

    `changes`: settings as key=value, for those peers that have the key. Raises CallFailed, and
    NotRun where the cache has nothing and `compute` is false or the peer is not installed.
    """
    peer = load(name)
    settings = settings_of(peer, changes)
    cached = entry(folder, one, name, settings, seed)
    if cached.exists():
        network, notes = cached.read()
        return network, notes | {"cached": True}
    reason = peer.unavailable() if compute else "not in the cache"
    if reason:
        raise NotRun(reason)
    jobs = min(jobs, len(one.genes)) if peer.parallel else 1
    network, measures = measured(
        partial(peer.infer, n_jobs=jobs, **settings),
        one.values,
        one.genes,
        one.regulators,
        seed,
        jobs=jobs,
    )
    notes = {
        "set": one.name,
        "method": name,
        "data": one.hash,
        "settings": settings,
        "seed": seed,
        **measures,
    }
    cached.write(network, notes)
    return cached.read()[0], notes | {"cached": False}
