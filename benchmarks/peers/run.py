"""One peer on one set: from the cache, or computed in a process of its own and put there."""

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
    """The peer has no result for the set, and is not there to make one; the message says why."""


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
    place = entry(folder, one, name, settings, seed)
    if place.exists():
        network, notes = place.read()
        return network, notes | {"cached": True}
    reason = peer.unavailable() if compute else "not in the cache"
    if reason:
        raise NotRun(reason)
    jobs = min(jobs, len(one.genes)) if peer.parallel else 1
    network, measures = measured(
        partial(peer.infer, n_jobs=jobs, **settings), one.values, one.genes, one.regulators, seed, jobs=jobs
    )
    notes = {"set": one.name, "method": name, "data": one.hash, "settings": settings, "seed": seed, **measures}
    place.write(network, notes)
    return place.read()[0], notes | {"cached": False}
