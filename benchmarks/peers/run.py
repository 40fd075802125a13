"""One peer on one set: read from the cache, or computed in a process of its own and cached."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from peers import load, settings_of
from peers.cache import entry
from peers.measure import measured
from peers.prepared import PreparedSet


class NotRun(RuntimeError):
    """The cache has no network of the peer for the set, and the peer cannot run; the message is the reason."""


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
    """The network (source, target, weight) and its notes: settings, seconds, memory, cores, versions, `cached`.

    `changes`: settings as key=value, for those peers that have the key. Raises CallFailed, and NotRun where the
    cache has nothing and `compute` is false or the peer is not installed.
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
        partial(peer.infer, n_jobs=jobs, **settings), one.values, one.genes, one.regulators, seed, jobs=jobs
    )
    notes = {"set": one.name, "method": name, "data": one.hash, "settings": settings, "seed": seed, **measures}
    cached.write(network, notes)
    return cached.read()[0], notes | {"cached": False}
