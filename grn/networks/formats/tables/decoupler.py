"""decoupler's `net`: source, target, weight. `decoupler.mt.ulm(adata, pandas.read_csv(path))` takes it as it is."""

from __future__ import annotations

from pathlib import Path

from grn.networks.formats.chosen import ChosenEdges


def write(chosen: ChosenEdges, path: Path) -> None:
    chosen.edges[["source", "target", "weight"]].to_csv(path, index=False)
