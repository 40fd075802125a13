"""Gene sets in GMT: a line for each regulator and sign, its name, a description, its targets, the strongest first.

Sets are called as pySCENIC calls its regulons: SPI1(+) has the genes that SPI1 raises, SPI1(-) those that it lowers.
"""

from __future__ import annotations

from pathlib import Path

from grn.errors import DataError
from grn.networks.formats.chosen import ChosenEdges

SIGNS = (("+", "raises"), ("-", "lowers"))


def write(chosen: ChosenEdges, path: Path) -> None:
    if not chosen.signed:
        raise DataError(
            "--format gmt writes sets that go up and down, and the signs of these weights mean nothing; give "
            "another format, as --format csv."
        )
    lines = []
    for source, edges in chosen.edges.groupby("source", sort=False):
        for sign, verb in SIGNS:
            targets = edges.loc[edges["weight"] > 0 if sign == "+" else edges["weight"] < 0, "target"]
            if len(targets):
                description = f"genes that {source} {verb} in {chosen.cells}"
                lines.append("\t".join([f"{source}({sign})", description, *targets]))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
