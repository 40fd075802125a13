"""BEELINE's rankedEdges.csv: Gene1, Gene2, EdgeWeight, between tabs, the strongest edges first.

BEELINE ranks by |EdgeWeight|, so signs are kept.
"""

from __future__ import annotations

from pathlib import Path

from grn.networks.formats.chosen import ChosenEdges

COLUMNS = {"source": "Gene1", "target": "Gene2", "weight": "EdgeWeight"}


def write(chosen: ChosenEdges, path: Path) -> None:
    chosen.edges[[*COLUMNS]].rename(columns=COLUMNS).to_csv(path, index=False, sep="\t")
