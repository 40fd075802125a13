"""Tables of edges: networks and references, those of grn and of other tools, from files and from
memory.

Gene names are plain strings, as genes may be called "NA" or "nan". To add a format, add its columns
to WEIGHTED or FORMATS.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from grn.edges.choose import COLUMNS, PROGRAMME
from grn.edges.signed_network import (
    edge_list,
    read_about,
    sign_has_meaning,
    signed_network,
    weights_in,
)
from grn.runtime.errors import DataError, check_known, one_line
from grn.runtime.h5ad import read_anndata
from grn.runtime.run_folder import CONFIG, refuse_cut_off, refuse_mixed_parts
from grn.runtime.tables import decoded, does_not_exist, number_advice, unpacked

if TYPE_CHECKING:
    from anndata import AnnData

# The names of the columns that hold regulator, target and, in most formats, a value.
Columns = tuple[str, ...]
WEIGHTED = (
    ("source", "target", "weight"),  # grn, decoupler
    ("TF", "target", "importance"),  # GRNBoost2 and GENIE3 of arboreto and pySCENIC
    ("Gene1", "Gene2", "EdgeWeight"),  # BEELINE's rankedEdges
    ("regulatoryGene", "targetGene", "weight"),  # GENIE3 of Bioconductor
    ("source", "target", "mor"),  # an older name of decoupler
    ("tf", "target", "mor"),  # DoRothEA's tables in R
)
BARE = ("0", "1", "2")  # tables of arboreto, which have no header
KEY = "grn"
SHARES = ("confidence", "q_value", "caused_q")  # of BESIDE, those from 0 to 1
BESIDE = COLUMNS[1:]  # further columns of grn's tables that are kept


@dataclass(frozen=True)
class PredictedNetwork:
    """edges: source, target, weight, those columns of BESIDE that exist, and cell_type in a table
    of several types.

    genes: all that the network names.
    sign: what the weights' signs mean (see grn.networks.run_files), "" where unknown.
    of_run: its genes are those of the run's cells.
    read_types: reads the edges of each cell type, by label, only where they are needed, as they may
        be many times as large.
    """

    edges: pd.DataFrame
    genes: pd.Index
    sign: str = ""
    of_run: bool = False
    read_types: Callable[[], dict[str, pd.DataFrame]] = dict

    @property
    def signs_have_meaning(self) -> bool:
        return sign_has_meaning(self.sign)

    @property
    def signed(self) -> bool:
        """Whether signs are scored."""
        return self.signs_have_meaning and bool((self.edges["weight"] < 0).any())

    def of_type(self, label: str | None) -> PredictedNetwork:
        """Return the network of one cell type, among the same genes; None: this network.

        Raises DataError where there is none.
        """
        if label is None:
            return self
        by_type = self.read_types()
        check_known(label, by_type, "The network", "cell type", "cell_type")
        return replace(self, edges=by_type[label], read_types=dict)


def open_network_file(path: Path, key: str = KEY) -> PredictedNetwork:
    """Read the network of a run folder (its edges.parquet), a network.h5ad, or a table (csv, tsv,
    parquet; WEIGHTED lists its columns).

    Of edges.parquet, the meaning of the signs is read from the network.h5ad beside it, and the
    networks of cell types from the edges_by_type.parquet.
    key: of varp, another network of network.h5ad.
    Raises DataError.
    """
    path = Path(path)
    check_exists(path)
    if key != KEY:
        inside = path / "network.h5ad" if path.is_dir() else path
        return replace(
            network_of_anndata(read_anndata(inside), inside, key), of_run=(path / CONFIG).is_file()
        )
    if path.is_dir():
        inside = path / "edges.parquet"
        refuse_cut_off(path, [inside.name])
        refuse_mixed_parts(path)
        return replace(open_network_file(inside), of_run=(path / CONFIG).is_file())
    if path.name.lower().endswith(".h5ad"):
        return network_of_anndata(read_anndata(path), path)
    network = network_of_table(read_table(path), path)
    if path.name != "edges.parquet":
        return network
    beside, by_type = path.with_name("network.h5ad"), path.with_name("edges_by_type.parquet")
    sign = str(read_about(beside)[1].get("sign", "")) if beside.is_file() else ""
    types = next((file for file in (by_type, beside) if file.is_file()), None)
    return replace(
        network, sign=sign, read_types=dict if types is None else partial(_types_of_file, types)
    )


def network_of_table(table: pd.DataFrame, where: Path | str) -> PredictedNetwork:
    """Return the network in a table with one of the sets of columns in WEIGHTED.

    where: names the table in errors.
    Raises DataError.
    """
    table = table.rename(columns=str)
    columns = find_columns(table, (*WEIGHTED, BARE))
    if columns is None:
        raise unknown_columns(where, table, WEIGHTED)
    source, target, weight = columns
    ends = {"source": names(where, table[source]), "target": names(where, table[target])}
    edges = pd.DataFrame(ends | {"weight": numbers(where, table[weight])})
    if weight.casefold() == "importance" and (sign := find_columns(table, [("regulation",)])):
        # as pySCENIC's add_cor writes it
        edges["weight"] *= np.sign(numbers(where, table[sign[0]]))
    for name in BESIDE:
        found = find_columns(table, [(name,)])
        if found and name == PROGRAMME:
            edges[name] = table[found[0]].astype(object).fillna("").astype(str).to_numpy(object)
        elif found and table[found[0]].notna().any():
            share = name in SHARES
            if share and pd.to_numeric(table[found[0]], errors="coerce").isna().all():
                continue  # words: DoRothEA's confidences are A to E
            values = numbers(where, table[found[0]], *((0, 1) if share else ()), unknown=True)
            if np.isfinite(values).any():
                edges[name] = values
    if not ((edges["source"] != edges["target"]) & (edges["weight"] != 0)).any():
        raise DataError(
            f"{where} has no edge between two genes whose weight is not 0; give a network with "
            "such edges."
        )
    genes = pd.Index(pd.unique(pd.concat([edges["source"], edges["target"]])))
    labels = cell_types(where, table)
    if labels is None:
        return PredictedNetwork(edges, genes)
    by_label = edges.assign(cell_type=labels)
    return PredictedNetwork(
        by_label,
        genes,
        read_types=lambda: {label: edges[labels == label] for label in pd.unique(labels)},
    )


def network_of_anndata(adata: AnnData, where: Path | str, key: str = KEY) -> PredictedNetwork:
    """Return the network in varp[key] (row = target, column = regulator)."""
    check_known(key, adata.varp, str(where), "network in varp called", "key")
    genes = pd.Index([str(name) for name in adata.var_names], dtype=object)
    edges = edge_list(weights_in(adata, key, where), genes)
    about = adata.uns.get("grn")
    # other tools may store anything there
    sign = about.get("sign", "") if isinstance(about, Mapping) else ""
    types = partial(_types_of_anndata, adata) if key == KEY else dict
    sign = sign if isinstance(sign, str) else ""
    return PredictedNetwork(edges.astype({"weight": np.float64}), genes, sign, read_types=types)


def _types_of_file(path: Path) -> dict[str, pd.DataFrame]:
    if path.name.lower().endswith(".h5ad"):
        return _types_of_anndata(read_anndata(path))
    table = read_table(path)
    # a run without types has no rows here
    return network_of_table(table, path).read_types() if len(table) else {}


def _types_of_anndata(adata: AnnData) -> dict[str, pd.DataFrame]:
    about = adata.uns.get("grn")
    if not isinstance(about, Mapping) or "cell_types" not in about or "cells" not in adata.obs:
        return {}
    network = signed_network(adata)
    genes = pd.Index([str(name) for name in adata.var_names], dtype=object)
    return {
        label: edge_list(weights, genes).astype({"weight": np.float64})
        for label, weights in network.by_type.items()
    }


# References.
WORDS = {"+": 1, "activation": 1, "-": -1, "repression": -1, "unknown": 0, "?": 0, "": 0}

# The columns of each format; formats with more columns come first. The third column holds the sign,
# as word or number.
FORMATS: dict[str, tuple[Columns, ...]] = {
    "TRRUST": (("TF", "Target", "Regulation"), ("0", "1", "2", "3")),
    "planted": (("source", "target", "sign"),),
    "decoupler": (
        ("source", "target", "weight"),
        ("source", "target", "mor"),
        ("tf", "target", "mor"),
    ),
    "BEELINE": (("Gene1", "Gene2", "Type"),),
    "unsigned": (("Gene1", "Gene2"), ("source", "target")),
}
CURATED = ("TRRUST", "decoupler")


@dataclass(frozen=True)
class ReferenceNetwork:
    """A network to compare with.

    edges: source, target, sign, each pair once, no self loops.
    format: a key of FORMATS.
    conflicts: pairs listed with both signs, which count as unknown.
    by_type: edges of each cell type, by label; `edges` are their union.
    """

    edges: pd.DataFrame
    format: str
    conflicts: int
    by_type: dict[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def curated(self) -> bool:
        return self.format in CURATED


def open_reference_file(path: Path) -> ReferenceNetwork:
    """Read known edges from a table (csv, tsv, parquet), TRRUST's also without a header.

    Raises DataError.
    """
    return reference_of_table(read_table(Path(path)), path)


def reference_of_table(table: pd.DataFrame, where: Path | str) -> ReferenceNetwork:
    """Return the known edges in a table with the columns of one of FORMATS; a column cell_type
    gives each label edges of its own.
    """
    table = table.rename(columns=str)
    found = ((name, find_columns(table, accepted)) for name, accepted in FORMATS.items())
    name, columns = next((each for each in found if each[1]), ("", None))
    if columns is None:
        raise unknown_columns(where, table, [accepted[0] for accepted in FORMATS.values()])
    edges = pd.DataFrame(
        {"source": names(where, table[columns[0]]), "target": names(where, table[columns[1]])}
    )
    if name == "unsigned":
        edges["sign"] = 0
    elif name == "decoupler":
        edges["sign"] = np.sign(numbers(where, table[columns[2]])).astype(np.int64)
    else:
        edges["sign"] = _signs(where, table[columns[2]])
    labels = cell_types(where, table)
    by_type = (
        {}
        if labels is None
        else {label: unique_edges(edges[labels == label]) for label in pd.unique(labels)}
    )
    pairs = edges[edges["source"] != edges["target"]].groupby(["source", "target"])["sign"]
    conflicts = int(((pairs.min() < 0) & (pairs.max() > 0)).sum())
    return ReferenceNetwork(unique_edges(edges), name, conflicts, by_type)


def unique_edges(reference: pd.DataFrame) -> pd.DataFrame:
    """Each pair once, without self loops; the sign of a pair that is listed with both signs is
    unknown (0).
    """
    table = reference.loc[reference["source"] != reference["target"], ["source", "target", "sign"]]
    by_pair = table.groupby(["source", "target"], sort=False)["sign"]
    # Where a pair has both signs, its smallest and largest sign cancel; a known sign outweighs an
    # unknown one.
    sign = np.sign(np.sign(by_pair.min()) + np.sign(by_pair.max())).astype(np.int64)
    return sign.rename("sign").reset_index()


def _signs(where: Path | str, column: pd.Series) -> np.ndarray:
    """Signs from the words in WORDS, or from numbers equal to 1, -1 or 0; a missing sign is unknown
    (0).
    """
    words = column.astype(str).str.strip().str.casefold().mask(column.isna(), "")
    values = pd.to_numeric(words, errors="coerce")
    signs = words.map(WORDS).fillna(values.where(values.isin([-1, 0, 1])))
    if signs.isna().any():
        first = int(signs.isna().to_numpy().argmax())
        raise DataError(
            f"{where}, row {first + 1}: {column.name} is {str(column.iloc[first])!r}, which is not "
            "a sign; write one of +, -, ?, Activation, Repression, Unknown, 1, -1, 0."
        )
    return signs.to_numpy(dtype=np.int64)


# Tables.

# Columns of the formats that are read.
READ = {
    "source",
    "target",
    "weight",
    "tf",
    "gene1",
    "gene2",
    "importance",
    "edgeweight",
    "regulatorygene",
}
READ |= {"targetgene", "mor", "sign", "regulation", "type", "cell_type"}


def read_table(path: Path) -> pd.DataFrame:
    """Read a table with its header.

    Text files (csv, tsv, also .gz) give strings; the first line shows the separator. Of a .cyjs
    file, its edges.

    Where the first line is itself an edge, as in files of arboreto and TRRUST, the columns are
    named 0, 1, 2, ..., as they are under the header 0,1,2,... that pandas writes for a table
    without names. Rows may begin with R's row names, or end with a separator. Columns without a
    name are left out, and so is the second of two columns with one name, unless they differ and are
    among READ. Spaces around separators are ignored.
    Raises DataError for files that are missing, empty, damaged or not a table.
    """
    check_exists(path)
    name = path.name.lower()
    try:
        if name.endswith(".cyjs"):  # of Cytoscape
            return pd.DataFrame(
                [edge["data"] for edge in json.loads(path.read_text("utf-8"))["elements"]["edges"]]
            )
        return pd.read_parquet(path) if name.endswith((".parquet", ".pq")) else _read_text(path)
    except PermissionError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as problem:
        raise DataError(
            f"{path} cannot be read as a table of edges ({one_line(problem)})",
            advice="give a csv, tsv or parquet file",
        ) from problem


def check_exists(path: Path) -> None:
    if not path.exists():
        raise DataError(does_not_exist(path, "give a path that exists."))


def find_columns(table: pd.DataFrame, accepted: Iterable[Columns]) -> Columns | None:
    """Return the first set of columns that the table has, in the table's own spelling; upper and
    lower case are the same.
    """
    own = {str(column).casefold(): str(column) for column in reversed(list(table.columns))}
    for names in accepted:
        if all(name.casefold() in own for name in names):
            return tuple(own[name.casefold()] for name in names)
    return None


def unknown_columns(
    where: Path | str, table: pd.DataFrame, accepted: Iterable[Columns]
) -> DataError:
    """Return the error for a table without one of the sets of columns that are accepted."""
    sets = " or ".join(f"({', '.join(names)})" for names in accepted)
    listed = ", ".join(map(str, table.columns[:8])) + (", ..." if len(table.columns) > 8 else "")
    return DataError(
        f"{where} has the columns {listed}",
        advice=f"it must be a list of edges with a header: name the columns {sets}",
    )


def names(where: Path | str, column: pd.Series) -> np.ndarray:
    """Gene names as plain strings, without the ' before = + - @ that keeps a spreadsheet from
    running them.

    Raises DataError for an empty name.
    """
    return (
        _labels(where, column).str.replace(r"^'(?=[=+\-@])", "", regex=True).to_numpy(dtype=object)
    )


def cell_types(where: Path | str, table: pd.DataFrame) -> np.ndarray | None:
    """Return the labels of the rows in the column cell_type; None without one.

    Raises DataError for an empty label.
    """
    columns = find_columns(table, [("cell_type",)])
    return None if columns is None else _labels(where, table[columns[0]]).to_numpy(dtype=object)


def _labels(where: Path | str, column: pd.Series) -> pd.Series:
    if (missing := _is_empty(column)).any():
        row = int(missing.argmax()) + 1
        raise DataError(
            f"{where}, row {row}: {column.name} is empty", advice="name it, or remove the row"
        )
    return column.astype(str)


def _is_empty(column: pd.Series) -> np.ndarray:
    return column.isna().to_numpy() | (column.astype(str).str.strip() == "").to_numpy()


def numbers(
    where: Path | str,
    column: pd.Series,
    least: float = -np.inf,
    most: float = np.inf,
    *,
    unknown: bool = False,
) -> np.ndarray:
    """Return a column as finite float64 from `least` to `most`.

    unknown: an empty cell is NaN.

    Raises DataError with the first other value.
    """
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    bad = ~(np.isfinite(values) & (values >= least) & (values <= most))
    if unknown:
        bad[bad] = ~_is_empty(column[bad])
    if bad.any():
        first = int(bad.argmax())
        found = str(column.iloc[first])
        others = f" (and {int(bad.sum()) - 1} more)" if bad.sum() > 1 else ""
        between = f" from {least:g} to {most:g}" if np.isfinite(most) else ""
        raise DataError(
            f"{where}, row {first + 1}{others}: {column.name} is {found!r}, which is not a finite "
            f"number{between}",
            advice=number_advice(found) or "correct or remove the row",
        )
    return values


def _read_text(path: Path) -> pd.DataFrame:
    with unpacked(path) as file:
        text = decoded(file.read())  # all of it: a damaged .gz may fail only at the end
    if "\0" in text:  # pandas would cut a name off there
        raise ValueError("null characters")
    line = next((line for line in text.splitlines() if line.strip()), "")
    separator = max("\t,;", key=line.count)
    fields = next(csv.reader([line], delimiter=separator, skipinitialspace=True))
    first = [field.strip() for field in fields]
    rows = pd.read_csv(
        io.StringIO(text),
        sep=separator,
        header=None,
        # one more than in the first line: pandas would silently shift longer rows
        names=range(len(first) + 1),
        dtype=str,
        keep_default_na=False,
        na_filter=False,
        skipinitialspace=True,
    )
    bare = _is_edge(first)
    header = [str(place) for place in range(len(first))] if bare else first
    rows = rows if bare else rows.iloc[1:]
    longer = rows[len(first)] != ""
    if not longer.any():
        header = [*header, ""]
    elif longer.all() and not bare and _are_row_names(rows[0], rows[1]):
        header = ["", *header]
    else:
        row = int(longer.to_numpy().argmax()) + 1
        raise DataError(f"{path}, row {row}, has more fields than the header", advice="correct it")
    rows = rows.apply(lambda column: column.str.strip())
    kept: dict[str, int] = {}
    for place, name in enumerate(header):
        if name and name not in kept:
            kept[name] = place
        elif name.casefold() in READ and (rows[place] != rows[kept[name]]).any():
            raise DataError(
                f"{path} has two columns called {name!r}, and they differ",
                advice="keep one of them",
            )
    return rows[list(kept.values())].set_axis(list(kept), axis=1).reset_index(drop=True)


def _is_edge(row: list[str]) -> bool:
    """Return whether a line is an edge (regulator, target and a number or a word of TRRUST) and not
    a header.
    """
    # pandas writes 0, 1, 2, ... for columns without names
    counting = [str(number) for number in range(len(row))]
    if row == counting or ["", *counting[:-1]] == row:
        return False
    return len(row) >= 3 and (
        _is_number(row[2]) or row[2] in {"Activation", "Repression", "Unknown"}
    )


def _are_row_names(first: pd.Series, second: pd.Series) -> bool:
    """Return whether the first field of rows longer than the header names them, as R's write.table
    does.

    Row names are all different, and by default R numbers the rows. But all regulators of a small
    table may differ, too:
    different texts are taken for row names only where the next field repeats, as regulators do.
    """
    return first.is_unique and bool(first.str.isdecimal().all() or not second.is_unique)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
