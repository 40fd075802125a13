"""Which cells with a known network are there?

    python benchmarks/sets.py                      # lists them: seconds
    python benchmarks/sets.py --export sets.npz    # and writes the peers' inputs to one file

Lists the sets in the folder that GRN_BENCHMARK_DATA names. `run_peers.py` reads the file on
machines that have neither these data nor this package.

Letters: C cells, N genes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from arguments import PATTERNS, Option, read_options
from peers.cached import PreparedSet, save_prepared

VARIABLE = "GRN_BENCHMARK_DATA"
COUNTS_SEEN = "log1p_normalised"  # data.multiplicity of the default configuration
SIGNS = {"+": 1, "-": -1}


@dataclass(frozen=True, eq=False)
class NetworkSet:
    """Cells and their true network.

    matrix [C, N] float32: raw counts (`values` = counts), or continuous values as they are
        (`values` = expression).
    regulators: the genes that may regulate; None: every gene.
    universe: the pairs that are scored, self left out. "all": every ordered pair of the reference's
        genes, as BEELINE does for simulated networks; "reference": {the reference's regulators} x
        {its genes}.
    hash: SHA-256 of the file's values, the gene names and the name of the transform that makes the
        peers' values.
    """

    name: str
    genes: list[str]
    values: Literal["counts", "expression"]
    matrix: np.ndarray
    labels: list[str] | None
    regulators: list[str] | None
    reference: pd.DataFrame  # source, target, sign: 1, -1, or 0 where it is not known
    universe: Literal["all", "reference"]
    hash: str

    @property
    def cells(self) -> int:
        return self.matrix.shape[0]

    def multiplicities(self) -> np.ndarray:
        """[C, N] float32, the input of every method: counts as log1p of counts scaled to the cells'
        median total.
        """
        if self.values == "expression":
            return self.matrix
        from scipy import sparse

        from grn.cells.preprocessing.multiplicity import median_total, to_multiplicity

        counts = sparse.csr_matrix(self.matrix)
        total = np.asarray(counts.sum(1, dtype=np.float64)).ravel()
        return to_multiplicity(counts, COUNTS_SEEN, total, median_total(total)).toarray()

    def prepared(self) -> PreparedSet:
        return PreparedSet(
            self.name, self.multiplicities(), self.genes, self.regulators or self.genes, self.hash
        )


def folder() -> Path:
    if not os.environ.get(VARIABLE):
        raise SystemExit(
            f"{VARIABLE} is not set; set it to the folder with the benchmark data (data/README.md)."
        )
    return Path(os.environ[VARIABLE])


def load_sets(patterns: Iterable[str] = ("*",)) -> list[NetworkSet]:
    """The sets whose names match one of the patterns (`sergio_*`), in the order of `SETS`."""
    patterns = list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in SETS):
            raise SystemExit(f"No set is called {pattern!r}; the sets are {', '.join(SETS)}.")
    return [
        load()
        for name, load in SETS.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    ]


def sergio(name: str, clean: bool) -> NetworkSet:
    """SERGIO's counts with technical noise, or log1p of its noise-free levels.

    The clean levels are continuous, non-negative and skewed (0 to 29 in DS1, 0 to 53 in DS2, a
    hundredth of them 0), on the scale of counts before any loss; their log1p is taken here, so all
    methods see the same.
    """
    import anndata

    adata = anndata.read_h5ad(folder() / f"{name}.h5ad")
    source = adata.layers["clean"] if clean else adata.X
    source = np.ascontiguousarray(
        source.toarray() if hasattr(source, "toarray") else source, dtype=np.float32
    )
    genes = list(map(str, adata.var_names))
    return NetworkSet(
        name=f"{name}_clean" if clean else name,
        genes=genes,
        values="expression" if clean else "counts",
        matrix=np.log1p(source) if clean else source,
        labels=list(map(str, adata.obs["cell_type"])),
        regulators=list(map(str, adata.var_names[adata.var["is_regulator"]])),
        reference=read_reference(folder() / f"{name}_network.csv", genes),
        universe="reference",
        hash=digest(source, genes, "log1p" if clean else COUNTS_SEEN),
    )


def boolode(network: str) -> NetworkSet:
    """A BoolODE simulation: continuous mRNA as it is; every gene may regulate."""
    path = folder() / "boolode" / network
    matrix, genes, _ = read_expression(path / "ExpressionData.csv")
    reference = read_reference(path / "GroundTruthNetwork.csv", genes)
    return NetworkSet(
        f"boolode_{network}",
        genes,
        "expression",
        matrix,
        None,
        None,
        reference,
        "all",
        digest(matrix, genes, "as is"),
    )


def mdc(name: str, network: str) -> NetworkSet:
    """Mouse dendritic cells, log-normalised. Regulators: the reference's; labels: the time point in
    the cell's name.
    """
    matrix, genes, cells = read_expression(folder() / "mdc" / "ExpressionData.csv")
    reference = read_reference(folder() / "mdc" / f"{network}_network.csv", genes)
    regulators = [gene for gene in genes if gene in set(reference["source"])]
    labels = [cell.rsplit("_", 1)[0] for cell in cells]
    return NetworkSet(
        name,
        genes,
        "expression",
        matrix,
        labels,
        regulators,
        reference,
        "reference",
        digest(matrix, genes, "as is"),
    )


def read_expression(path: Path) -> tuple[np.ndarray, list[str], list[str]]:
    """[C, N] float32, genes and cells of a table with a row a gene. Genes called NA or nan keep
    their names.
    """
    table = pd.read_csv(path, dtype={0: str}, keep_default_na=False)
    genes = table.iloc[:, 0].astype(str).tolist()
    values = table.iloc[:, 1:].to_numpy(np.float32)
    return np.ascontiguousarray(values.T), genes, list(map(str, table.columns[1:]))


def read_reference(path: Path, genes: list[str]) -> pd.DataFrame:
    """Edges between measured genes, without self loops: source, target, sign."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    edges = pd.DataFrame({"source": table["Gene1"], "target": table["Gene2"], "sign": 0})
    if "Type" in table:
        edges["sign"] = table["Type"].map(SIGNS).fillna(0).astype(int)
    measured = (
        edges["source"].isin(genes)
        & edges["target"].isin(genes)
        & (edges["source"] != edges["target"])
    )
    return edges[measured].drop_duplicates().reset_index(drop=True)


def digest(matrix: np.ndarray, genes: list[str], transform: str) -> str:
    """Of the file's values, not of their logarithms: those may differ in the last bit from one
    machine to the next.
    """
    sha = hashlib.sha256(np.ascontiguousarray(matrix).tobytes())
    sha.update("\n".join([*genes, transform]).encode())
    return sha.hexdigest()


NETWORKS = (
    *("mCAD", "VSC", "HSC", "GSD"),
    *("dyn-linear", "dyn-linear-long", "dyn-cycle"),
    *("dyn-bifurcating", "dyn-bifurcating-converging", "dyn-trifurcating"),
)
SETS: dict[str, Callable[[], NetworkSet]] = {
    "sergio_ds1": partial(sergio, "sergio_ds1", clean=False),
    "sergio_ds1_clean": partial(sergio, "sergio_ds1", clean=True),
    "sergio_ds2": partial(sergio, "sergio_ds2", clean=False),
    "sergio_ds2_clean": partial(sergio, "sergio_ds2", clean=True),
    **{f"boolode_{network}": partial(boolode, network) for network in NETWORKS},
    "mdc_string": partial(mdc, "mdc_string", "STRING"),
    "mdc_chip": partial(mdc, "mdc_chip", "ChIP_nonspecific"),
}


def main() -> None:
    arguments = read_options(
        __doc__, sets=PATTERNS, export=Option(help="the .npz file to write", kind=Path)
    )
    sets = load_sets(arguments.sets)
    for one in sets:
        regulators = len(one.regulators or one.genes)
        print(
            f"{one.name:<36} {one.cells:>5} cells {len(one.genes):>4} genes {regulators:>4} "
            f"regulators {len(one.reference):>5} edges  {one.values}"
        )
    if arguments.export:
        save_prepared(arguments.export, [one.prepared() for one in sets])
        print(f"wrote {arguments.export}")


if __name__ == "__main__":
    main()
