"""Whole transcriptomes: the points of `--whole`, and a summary of their rows.

All cells of a batch have about as many genes, so that softmax, which pads packed bags to the longest, loses no time to
padding. Batches are so large that the GPU, and not the host, limits the rate.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from training_parts.cells import VOCABULARY, Point

GENES = 20000
CELLS = {"default": 64, "wide": 16}  # of a batch; 64 is the default of trainer.batch_size
SERIES, SERIES_CELLS, SERIES_VOCABULARY = (5000, 10000, 20000, 40000, 60000), 8, 80000
PARTS = {
    "rates": "20 000 of 40 000 genes, the default and a wider model, all keys and 5 %",
    "genes": "5000 to 60 000 of 80 000 genes, 8 cells: time and memory",
}


def points_of_whole(parts: list[str], cells: int | None = None, *, tiny: bool = False) -> list[Point]:
    """Points with packed cells of one size. cells: of a batch, instead of CELLS and SERIES_CELLS."""
    found: list[Point] = []
    genes, vocabulary = (40, 80) if tiny else (GENES, VOCABULARY)
    if "rates" in parts:
        for model, many in CELLS.items():
            for keys in ("all", "5 %"):
                many = 3 if tiny else many
                found.append(replace(Point.of("packed", genes, keys, cells or many, vocabulary), model=model))
    if "genes" in parts:
        for size in (20, 40, 60) if tiny else SERIES:
            many, known = (2, 80) if tiny else (SERIES_CELLS, SERIES_VOCABULARY)
            found.append(Point.of("packed", size, "all", cells or many, known))
    return [replace(point, spread=0.0) for point in found]


def describe(rows: list[dict[str, Any]]) -> str:
    """Lines with flashsign's cells/s over cuDNN's, and with a linear fit of memory to the number of genes."""
    rates: dict[tuple, dict[str, float]] = {}
    memory: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row in rows:
        setting = row["model"], row["keys"], row["genes"], row["cells"], row["vocabulary"]
        rates.setdefault(setting, {})[row["method"]] = row["cells_per_s"]
        if row["vocabulary"] in (SERIES_VOCABULARY, 80) and not math.isnan(row["memory_gib"]):
            memory.setdefault((row["method"], row["cells"]), []).append((row["genes"], row["memory_gib"]))
    lines = []
    for (model, keys, genes, cells, _), found in rates.items():
        ratio = found.get("flashsign", math.nan) / found.get("SDPA cuDNN", math.nan)
        if not math.isnan(ratio):
            lines.append(f"{model} model, {genes} genes x {cells} cells, {keys} as keys: {ratio:.2f} x cuDNN's cells/s")
    for (method, cells), points in memory.items():
        genes, gib = np.array(points).T
        if len(points) > 2:
            slope, rest = np.polyfit(genes, gib, 1)
            off = np.abs(slope * genes + rest - gib).max() / gib.max()
            lines.append(
                f"{method}, {cells} cells: {rest:.2f} GiB + {slope * 2**20 / cells:.2f} KiB per gene and cell, "
                f"at most {off:.1%} of the largest value off that line"
            )
    return "\n".join(lines)
