"""Join many files of cells by gene name into one: a .zarr folder whose arrays are cut into shards,
or an .h5ad file.

A file that stores its matrix by rows is read piece by piece; other files are read whole, one after
another. Every count is checked before anything is written. The result has the genes that all files
have: for any other gene, the cells of some files would have zeros that nobody counted.

`anndata.experimental.concat_on_disk` would check no counts, add up no gene that is listed twice,
read no 10x files and cut nothing into shards.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from anndata import AnnData
from anndata.utils import make_index_unique
from scipy import sparse

from grn.cells.genes.names import gene_names, merge_duplicates, once_each
from grn.cells.load import PIECE
from grn.cells.preprocessing.counts import (
    choices_that_hold,
    features_of,
    genes_only,
    read_expression,
    stored_matrix,
)
from grn.cells.readers.matrix import csr_pieces
from grn.cells.readers.registry import is_text, source_in_file
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError
from grn.runtime.in_pieces import write_in_pieces
from grn.runtime.messages import Say

# the column of obs that says where a cell is from, unless a file has such a column itself
FILE = "file"


@dataclass(frozen=True)
class Shard:
    """One of the files.

    config: how it is read.
    obs: table of its cells.
    var: table of its genes, each once.
    names: of the genes, each once.
    column: position in names of each column of the matrix, int64.
    """

    config: DataConfig
    obs: pd.DataFrame
    var: pd.DataFrame
    names: list[str]
    column: np.ndarray


def shard(files: Sequence[Path], output: Path, say: Say) -> None:
    """Write the cells of all files into `output`, a new .zarr folder or .h5ad file, completely or
    not at all.

    say: gets sentences about each file and about the result.
    Raises DataError where a file holds no counts, where files share too few gene names, or where a
    .zarr folder cannot hold a column by its name.
    """
    if len({file.resolve() for file in files}) < len(files):
        raise DataError("A file is given twice", advice="give each file once")
    parts = [_examined(file, say) for file in files]
    everywhere = set.intersection(*(set(part.names) for part in parts))
    genes = [name for name in parts[0].names if name in everywhere]
    fewest = min(parts, key=lambda part: len(part.names))
    if 2 * len(genes) < len(fewest.names):
        raise DataError(
            f"All files have {len(genes)} genes by the same names, of the {len(fewest.names)} in "
            f"{fewest.config.path}",
            advice="give files whose genes have one kind of names (symbols, or Ensembl ids)",
        )
    columns = [name for name in parts[0].var if all(name in part.var for part in parts)]
    adata = AnnData(obs=_joined(parts, files), var=_storable(parts[0].var.loc[genes, columns]))
    paths = [str(name) for name in (*adata.obs, *adata.var) if "/" in str(name)]
    if paths and output.suffix == ".zarr":
        raise DataError(
            f"A .zarr folder has no column with a / in its name, as {paths[0]!r} is",
            advice="rename the column, or write an .h5ad file",
        )
    write_in_pieces(output, adata, (piece for part in parts for piece in _pieces(part, genes)))
    most = max(len(part.names) for part in parts)
    say(
        f"{adata.n_obs} cells of {len(files)} files are in {output}, with the {len(genes)} genes "
        f"that all files have (of up to {most})."
    )


def _examined(path: Path, say: Say) -> Shard:
    """Check all counts of a file and return its tables.

    The counts are in X; if these are none, in the first other matrix that holds counts.
    """
    config = DataConfig(path=str(path), duplicates="sum")
    if is_text(path):
        raise DataError(
            f"{path} is a text file, which does not say what its rows are",
            advice="write it as .h5ad",
        )
    with source_in_file(config, everything=False) as adata:
        try:
            found = read_expression(adata, config, PIECE)
        except DataError as error:
            others = [
                choice
                for choice in choices_that_hold(adata, "counts", PIECE)
                if choice not in ("X", "recover")
            ]
            if not others:
                raise DataError(
                    f"{path} does not hold counts: {error.problem}", advice="give files of counts"
                ) from error
            config = config.model_copy(update={"counts": others[0]})
            found = read_expression(adata, config, PIECE)
        names, column = once_each(gene_names(found.var, None), config)
        twice = len(column) - len(names)
        read = " ".join(filter(None, [found.origin, found.left_out]))
        added = (
            f" {twice} more have names that occur before: their counts are added." if twice else ""
        )
        say(f"{path}: {adata.n_obs} cells, {len(names)} genes. {read}{added}")
        first = np.unique(column, return_index=True)[1]
        var = found.var.iloc[first].set_axis(pd.Index(names, dtype=object))
        return Shard(config, adata.obs, var, names, column)


def _joined(parts: Sequence[Shard], files: Sequence[Path]) -> pd.DataFrame:
    """Return the joined obs of all files, with every column that any of them has.

    Where two cells have the same name, the name of the file is added to the names of all cells.
    """
    stems = [file.stem for file in files]
    own = stems if len(set(stems)) == len(stems) else [str(file) for file in files]
    tables = [
        part.obs if FILE in part.obs else part.obs.assign(**{FILE: name})
        for part, name in zip(parts, own, strict=True)
    ]
    # of columns that are empty in a file
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        obs = pd.concat(tables)
    if obs.index.has_duplicates:
        sources = np.repeat(np.array(own, object), [len(part.obs) for part in parts])
        names = [f"{name}-{source}" for name, source in zip(obs.index, sources, strict=True)]
        obs.index = make_index_unique(pd.Index(names, dtype=object))
    return _storable(obs)


def _storable(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table that can be written: columns of mixed types become booleans or texts. Missing
    values stay missing.
    """
    table = table.copy(deep=False)
    for name in table.columns[table.dtypes == "object"]:
        kind = pd.api.types.infer_dtype(table[name], skipna=True)
        if kind == "boolean":
            table[name] = table[name].astype("boolean")
        elif kind not in ("string", "empty"):
            table[name] = table[name].map(str, na_action="ignore")
    return table


def _pieces(part: Shard, genes: Sequence[str]) -> Iterator[sparse.csr_matrix]:
    """Yield the counts of a file, clean CSR float32 [<= PIECE, N], in the order of `genes`."""
    place = {name: number for number, name in enumerate(part.names)}
    order = np.array([place[gene] for gene in genes])
    with source_in_file(part.config, everything=False) as adata:
        only = genes_only(features_of(adata, part.config.counts))
        for piece in csr_pieces(stored_matrix(adata, part.config.counts), part.config.path, PIECE):
            chosen = merge_duplicates(only(piece).astype(np.float32), part.column)[:, order]
            chosen.sort_indices()
            yield chosen
