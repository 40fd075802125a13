"""Files of a network for other programs: a function for each format, and FORMATS, which lists them.

To add a format, write `_name(chosen, path)`, which writes the file `path` (a temporary one, which
takes its name when it is whole), add it to FORMATS, and in tests/edges/test_formats.py open its
file with the program that it is for.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp

from grn.edges.choose import PROGRAMME, ChosenEdges
from grn.runtime.atomic import refuse_unwritable, replacing_file
from grn.runtime.errors import ConfigError, DataError, RunFolderError
from grn.runtime.h5ad import write_anndata
from grn.runtime.messages import Say, silent
from grn.runtime.tables import spreadsheet_safe

if TYPE_CHECKING:
    import networkx

EDGE = ["source", "target", "weight"]
GENERNIB = 50_000  # edges that its metrics read, the strongest ones


def write_file(chosen: ChosenEdges, output: Path, name: str, say: Say = silent) -> None:
    """Write the chosen edges in the format `name` as the file `output`, whole or not at all, and
    say what they are.

    Raises ConfigError, RunFolderError as `refuse_output`, and DataError where the format needs
    signs that mean something.
    """
    refuse_output(name, output)
    with replacing_file(output) as beside:
        FORMATS[name].write(chosen, beside)
    for role, absent in chosen.absent.items():
        if absent:
            named = ", ".join(map(repr, absent[:3])) + (", ..." if len(absent) > 3 else "")
            say(
                f"{len(absent)} of the {role} that were asked for have no edge in this network: "
                f"{named}."
            )
    edges, up = chosen.edges, int((chosen.edges["weight"] > 0).sum())
    signs = f", {up} up and {len(edges) - up} down" if chosen.signed else ""
    say(
        f"Wrote {len(edges)} edges{signs}, from {edges['source'].nunique()} regulators to "
        f"{edges['target'].nunique()} targets ({chosen.cells}), as {output}."
    )


def refuse_output(name: str, output: Path) -> None:
    """Raise ConfigError, RunFolderError where the format is unknown or `output` cannot be made."""
    if name not in FORMATS:
        raise ConfigError(
            "{field} is " + f"{name!r}; the formats are {', '.join(FORMATS)}", field="format"
        )
    ending = FORMATS[name].ending
    if not output.name.lower().endswith(ending):
        raise ConfigError(
            f"{name} files end in {ending}, and {{field}} is {output}", field="output"
        )
    if os.path.lexists(output):
        raise RunFolderError("{field} " + f"{output} exists and is not overwritten", field="output")
    refuse_unwritable(output)


def _csv(chosen: ChosenEdges, path: Path) -> None:
    spreadsheet_safe(chosen.edges).to_csv(path, index=False)


def _decoupler(chosen: ChosenEdges, path: Path) -> None:
    """decoupler's `net`: `decoupler.mt.ulm(adata, pandas.read_csv(path))` takes it as it is."""
    chosen.edges[EDGE].to_csv(path, index=False)


def _beeline(chosen: ChosenEdges, path: Path) -> None:
    """BEELINE's rankedEdges.csv, between tabs. BEELINE ranks by |EdgeWeight|, so signs are kept."""
    chosen.edges[EDGE].set_axis(["Gene1", "Gene2", "EdgeWeight"], axis=1).to_csv(
        path, index=False, sep="\t"
    )


def _parquet(chosen: ChosenEdges, path: Path) -> None:
    chosen.edges.to_parquet(path, index=False)


def _pyscenic(chosen: ChosenEdges, path: Path) -> None:
    """pySCENIC's adjacencies, as its step `grn` writes them, between tabs. An importance has no
    sign.

    Signs that mean something are in the columns that pySCENIC's `add_cor` adds, regulation (1 or
    -1) and rho (here the weight): `pyscenic ctx` then makes activating and repressing modules and
    computes no correlations.
    """
    edges = chosen.edges
    table = {"TF": edges["source"], "target": edges["target"], "importance": edges["weight"].abs()}
    if chosen.signed:
        table |= {"regulation": np.sign(edges["weight"]).astype(int), "rho": edges["weight"]}
    pd.DataFrame(table).to_csv(path, index=False, sep="\t")


def _gmt(chosen: ChosenEdges, path: Path) -> None:
    """Gene sets, a line each: name, description, targets from the strongest on. SPI1(+) has the
    genes that SPI1 raises, as pySCENIC calls its regulons, SPI1(-) those that it lowers.
    """
    if not chosen.signed:
        raise DataError(
            "gmt sets go up and down, and the signs of these weights mean nothing", field="format"
        )
    lines = []
    for source, edges in chosen.edges.groupby("source", sort=False):
        for sign, verb, of_sign in (
            ("+", "raises", edges["weight"] > 0),
            ("-", "lowers", edges["weight"] < 0),
        ):
            if of_sign.any():
                description = f"genes that {source} {verb} in {chosen.cells}"
                lines.append(
                    "\t".join([f"{source}({sign})", description, *edges.loc[of_sign, "target"]])
                )
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _graph(chosen: ChosenEdges) -> networkx.DiGraph:
    """Return the edges with their numbers, but for NaN, which JSON has not, and the programmes of
    their targets; genes say whether they regulate another.
    """
    import networkx

    edges, graph = chosen.edges, networkx.DiGraph(name=f"grn, {chosen.cells}")
    graph.add_nodes_from(pd.unique(edges["source"]), regulator=True)
    graph.add_nodes_from(
        (gene for gene in pd.unique(edges["target"]) if gene not in graph), regulator=False
    )
    for edge in edges.to_dict("records"):
        numbers = {name: float(edge[name]) for name in chosen.numbers if not math.isnan(edge[name])}
        programme = {PROGRAMME: edge[PROGRAMME]} if edge.get(PROGRAMME) else {}
        graph.add_edge(edge["source"], edge["target"], **numbers, **programme)
    return graph


def _graphml(chosen: ChosenEdges, path: Path) -> None:
    """For networkx, igraph, Gephi and yEd."""
    import networkx

    networkx.write_graphml(_graph(chosen), path)


def _cytoscape(chosen: ChosenEdges, path: Path) -> None:
    """cytoscape.js' JSON, which Cytoscape opens as a .cyjs file; edges say what their signs mean,
    and are in the order of certainty, which networkx does not keep.
    """
    import networkx

    graph = _graph(chosen)
    for _, _, edge in graph.edges(data=True) if chosen.signed else ():
        edge["interaction"] = "raises" if edge["weight"] > 0 else "lowers"
    data = networkx.cytoscape_data(graph)
    place = {
        pair: row
        for row, pair in enumerate(zip(chosen.edges["source"], chosen.edges["target"], strict=True))
    }
    data["elements"]["edges"].sort(
        key=lambda edge: place[edge["data"]["source"], edge["data"]["target"]]
    )
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def _h5ad(chosen: ChosenEdges, path: Path) -> None:
    """AnnData of all genes with the edges in varp["grn"]: row = target, column = regulator, as in
    network.h5ad.
    """
    import anndata

    genes, edges = pd.Index(chosen.genes, dtype=object), chosen.edges
    rows, columns = genes.get_indexer(edges["target"]), genes.get_indexer(edges["source"])
    adata = anndata.AnnData(
        np.zeros((0, len(genes)), np.float32),
        obs=pd.DataFrame({"cells": np.zeros(0, int)}, index=pd.Index([], dtype=object)),
        var=pd.DataFrame({"is_regulator": np.isin(np.arange(len(genes)), columns)}, index=genes),
    )
    weight = edges["weight"].to_numpy(np.float32)
    adata.varp["grn"] = sp.csr_matrix((weight, (rows, columns)), shape=(len(genes), len(genes)))
    none = pd.DataFrame({"slug": [], "label": []}, dtype=object)
    adata.uns["grn"] = {**chosen.about, "cells": chosen.cells, "cell_types": none}
    write_anndata(path, adata)


def _genernib(chosen: ChosenEdges, path: Path) -> None:
    """The prediction of OpenProblems' GRN inference task (geneRNIB), by its schema, with as many
    edges as it reads; weights are text, as its own methods write them. dataset_id is the stem of
    the name of the run's cells: give these the task's name for them.
    """
    import anndata

    table = chosen.edges[EDGE].head(GENERNIB).astype(str).astype(object)
    table.index = table.index.astype(str)
    adata = anndata.AnnData(np.zeros((0, 0), np.float32))
    adata.uns = {
        "dataset_id": str(chosen.about.get("dataset_id", "")),
        "method_id": "grn",
        "prediction": table,
    }
    write_anndata(path, adata)


class Format(NamedTuple):
    """write: (chosen edges, path) -> None.   ending: of the file's name."""

    write: Callable[[ChosenEdges, Path], None]
    ending: str


FORMATS = {
    "parquet": Format(_parquet, ".parquet"),
    "csv": Format(_csv, ".csv"),
    "h5ad": Format(_h5ad, ".h5ad"),
    "graphml": Format(_graphml, ".graphml"),
    "cytoscape": Format(_cytoscape, ".cyjs"),
    "pyscenic": Format(_pyscenic, ".tsv"),
    "gmt": Format(_gmt, ".gmt"),
    "beeline": Format(_beeline, ".csv"),
    "decoupler": Format(_decoupler, ".csv"),
    "genernib": Format(_genernib, ".h5ad"),
}
