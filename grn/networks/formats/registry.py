"""Which function writes which format.

To add a format:
1. write NAME.py in tables/, graphs/ or hdf5/ with `write(chosen: ChosenEdges, path: Path) -> None`, which writes the
   file `path` (a temporary one, which takes its name when it is whole);
2. add it to FORMATS below, with the ending that the program expects of the file;
3. in tests/networks/formats/, open what it wrote with the program that it is for, and compare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from grn.errors import ConfigError

if TYPE_CHECKING:
    from grn.networks.formats.chosen import ChosenEdges

    Writer = Callable[[ChosenEdges, Path], None]


@dataclass(frozen=True)
class Format:
    """module: below grn.networks.formats.   ending: of the file.   what: the file in a few words, for messages."""

    module: str
    ending: str
    what: str


FORMATS = {
    "parquet": Format("tables.parquet", ".parquet", "a table, every column"),
    "csv": Format("tables.csv", ".csv", "a table, every column"),
    "h5ad": Format("hdf5.h5ad", ".h5ad", "AnnData with the matrix in varp['grn']"),
    "graphml": Format("graphs.graphml", ".graphml", "a graph for networkx, igraph, Gephi, yEd"),
    "cytoscape": Format("graphs.cytoscape", ".cyjs", "a graph for Cytoscape and cytoscape.js"),
    "cx2": Format("graphs.cx2", ".cx2", "a graph for NDEx and Cytoscape Web"),
    "pyscenic": Format("tables.pyscenic", ".tsv", "adjacencies for pySCENIC"),
    "gmt": Format("tables.gmt", ".gmt", "gene sets, those that go up and down apart"),
    "beeline": Format("tables.beeline", ".csv", "rankedEdges for BEELINE"),
    "decoupler": Format("tables.decoupler", ".csv", "net for decoupler"),
    "openproblems": Format("hdf5.openproblems", ".h5ad", "the prediction of OpenProblems' GRN task"),
}


def check_name(name: str, output: Path) -> Format:
    """The format called `name`. Raises ConfigError where there is none, or the file's ending is not the format's."""
    if name not in FORMATS:
        raise ConfigError(f"--format is {name!r}; the formats are {', '.join(FORMATS)}.")
    found = FORMATS[name]
    if not output.name.lower().endswith(found.ending):
        bare = output.with_suffix("")  # x.csv.gz: x.csv
        better = bare if bare.name.lower().endswith(found.ending) else output.with_suffix(found.ending)
        raise ConfigError(
            f"--format {name} writes one file whose name ends in {found.ending}, and --output is {output}; give "
            f"--output {better}."
        )
    return found


def writer(name: str) -> Writer:
    """The function that writes a format; its libraries are imported now, not before."""
    return cast("Writer", import_module(f"grn.networks.formats.{FORMATS[name].module}").write)
