"""10x folders: matrix.mtx beside its barcodes and features, each plain or .gz, with or without a
prefix.

GEO puts a prefix before the three names (GSM…_matrix.mtx.gz), kallisto calls them
cells_x_genes.mtx, .barcodes.txt and .genes.txt and writes cells as rows, and a run of Cell Ranger
has such a folder within.
"""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path

import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.io import mmread

from grn.cells.readers import reading
from grn.cells.readers.tenx import of_features
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError
from grn.runtime.tables import decoded, unpacked

NUMBERS = b"0123456789+-.eE \t\r\n"
PACKED = r"(\.gz)?"
BARCODES = re.compile(rf"(.*)barcodes\.(tsv|txt){PACKED}", re.I)
FEATURES = re.compile(rf"(.*)(features|genes)\.(tsv|txt){PACKED}", re.I)
MATRIX = re.compile(rf"(.*)matrix\.mtx{PACKED}", re.I)
ANY_MATRIX = re.compile(rf"(.*)\.mtx{PACKED}", re.I)  # as STARsolo's spliced.mtx
# Where a run of Cell Ranger, or of STARsolo, keeps the matrix of its cells.
RUNS = (
    "",
    "outs/",
    "count/",
    "outs/count/",
    "per_sample_outs/*/count/",
    "outs/per_sample_outs/*/count/",
    "Gene/",
)
PLACES = (
    "filtered_feature_bc_matrix",
    "sample_filtered_feature_bc_matrix",
    "filtered_gene_bc_matrices/*",
    "filtered",
)
SEVERAL = "set {field} to one of them"


def holds_matrix(folder: Path) -> bool:
    """Return whether a file in a folder is called as a matrix is."""
    return any(ANY_MATRIX.fullmatch(path.name) for path in folder.iterdir())


def place_within(folder: Path) -> Path:
    """Return the folder, or the .h5 file, with the matrix of the cells in a run of Cell Ranger; any
    other folder itself.

    Raises DataError where a run has several matrices.
    """
    if holds_matrix(folder):
        return folder
    found = [
        path
        for run in RUNS
        for place in PLACES
        for path in folder.glob(run + place)
        if path.is_dir() and any(_mtx(path))
    ] or [path for run in RUNS for place in PLACES[:2] for path in folder.glob(f"{run}{place}.h5")]
    if len(found) > 1:
        problem = (
            f"{folder} holds {len(found)} matrices "
            f"({', '.join(map(str, found[:4]))}{', ...' * (len(found) > 4)})"
        )
        raise DataError(problem, field="data.path", advice=SEVERAL)
    return found[0] if found else folder


def read_mtx(path: Path, config: DataConfig) -> AnnData:
    """Read the genes of a 10x folder.

    path: the folder, or one matrix in it.
    Raises DataError.
    """
    with reading(f"{path} cannot be read as a 10x folder"):
        matrix, *beside = _files(path)
        barcodes, features = map(_table, beside)
        with unpacked(matrix) as file:
            banner, _, rest = file.read().partition(b"\n")
        entries = b"\n".join(line for line in rest.split(b"\n") if not line.startswith(b"%"))
        strange = entries.translate(None, NUMBERS)  # SciPy would read 5x as 5
        if strange or not re.fullmatch(
            rb"%%matrixmarket\s+matrix\s+coordinate\s+(integer|real)\s+general\s*", banner.lower()
        ):
            found = strange[:20] or banner[:60]
            raise ValueError(
                f"its matrix has {found!r} where a coordinate matrix of numbers has none"
            )
        # SciPy 1.18 announces that 1.20 reads into an array; either makes a coo_matrix.
        warnings.filterwarnings("ignore", "The default value for `spmatrix`", DeprecationWarning)
        # Always read as real numbers: under the banner `integer`, SciPy would cut fractions off.
        values = sparse.coo_matrix(
            mmread(io.BytesIO(b"%%MatrixMarket matrix coordinate real general\n" + rest))
        )
        counts = _cells_by_genes(path, values, len(barcodes), len(features))
        # genes.tsv has no types, a bare list only names.
        named = pd.DataFrame(
            {"name": features[min(1, features.shape[1] - 1)], "gene_ids": features[0]}
        )
        # "unknown" for all, as pipelines write that have no symbols
        if named["name"].nunique() == 1:
            named["name"] = named["gene_ids"]
        if 2 in features:
            named["feature_types"] = features[2]
        return of_features(path, counts, barcodes[0].to_numpy(), named)


def _cells_by_genes(
    path: Path, values: sparse.coo_matrix, cells: int, features: int
) -> sparse.csr_matrix:
    """Return a matrix as cells by features. Its rows are features, as in 10x folders, unless the
    numbers of names say that they are cells.

    path: of the folder, for messages.
    cells, features: how many names there are.
    Raises DataError where these numbers do not fit the matrix.
    """
    if values.shape == (features, cells):
        return values.T.tocsr()
    if values.shape == (cells, features):
        return values.tocsr()
    rows, columns = values.shape
    raise DataError(
        f"The matrix of {path} is {rows} x {columns}, but there are {features} features and "
        f"{cells} barcodes",
        field="data.path",
        advice="remove the header of barcodes or features, which have none"
        if 1 in (cells - columns, features - rows)
        else "give the three files of one sample",
    )


def _mtx(folder: Path) -> list[Path]:
    """Return the matrices in a folder: files called matrix.mtx; without these, with a prefix before
    that name; without these, all .mtx files.
    """
    files = sorted(folder.iterdir())
    found = [[path for path in files if form.fullmatch(path.name)] for form in (MATRIX, ANY_MATRIX)]
    exact = [path for path in found[0] if path.name.lower().startswith("matrix.mtx")]
    return exact or found[0] or found[1]


def _files(path: Path) -> tuple[Path, Path, Path]:
    """Return the paths of a matrix, its barcodes and its features.

    path: of the folder, or of the matrix.
    Raises DataError where there are several matrices or none, ValueError where files are missing or
    could belong to another matrix.
    """
    folder, matrices = (path, _mtx(path)) if path.is_dir() else (path.parent, [path])
    if not matrices:
        raise DataError(
            f"{folder} is a folder without a matrix: it has no matrix.mtx (or .gz), nor the "
            "folders of Cell Ranger",
            field="data.path",
            advice="set {field} to a file of cells, or to the folder with matrix.mtx",
        )
    if len(matrices) > 1:
        names = ", ".join(str(each) for each in matrices[:4])
        problem = (
            f"{folder} holds {len(matrices)} matrices ({names}{', ...' * (len(matrices) > 4)})"
        )
        raise DataError(problem, field="data.path", advice=SEVERAL)
    (matrix,) = matrices
    form = MATRIX if MATRIX.fullmatch(matrix.name) else ANY_MATRIX
    sample = _prefix(form, matrix)
    others = {_prefix(form, each) for each in folder.iterdir() if form.fullmatch(each.name)} - {
        sample
    }
    barcodes, features = (
        _beside(folder, kind, sample, others, name)
        for kind, name in ((BARCODES, "barcodes.tsv"), (FEATURES, "features.tsv or genes.tsv"))
    )
    return matrix, barcodes, features


def _beside(folder: Path, form: re.Pattern[str], sample: str, others: set[str], name: str) -> Path:
    """Return the file of barcodes, or of features, of a sample: the one with the prefix of the
    sample or, if there is none, the one without the prefix of another sample.

    form: of the file's name.
    sample, others: prefixes.
    name: of the file in messages.
    Raises ValueError where there is none, or several: of a plain one and a .gz, either could belong
    to the other files.
    """
    every = [
        path for path in sorted(folder.iterdir()) if path.is_file() and form.fullmatch(path.name)
    ]
    shared = [path for path in every if _prefix(form, path) not in others]
    found = [path for path in every if _prefix(form, path) == sample] or shared
    if len(found) != 1:
        listed = f": {', '.join(path.name for path in found)}" if found else ""
        raise ValueError(f"it has {len(found)} files of the name {name} (or .gz), not one{listed}")
    return found[0]


def _prefix(form: re.Pattern[str], path: Path) -> str:
    """Return the part of a file's name before the name that `form` knows."""
    match = form.fullmatch(path.name)
    return "" if match is None else match[1].rstrip("._-")


def _table(path: Path) -> pd.DataFrame:
    """Read a file without a header as columns of texts. Quotes are part of a text.

    Raises ValueError.
    """
    with unpacked(path) as file:
        lines = [
            line.rstrip("\r").split("\t")
            for line in decoded(file.read()).rstrip("\r\n").split("\n")
        ]
    if any(len(fields) != len(lines[0]) or not fields[0] for fields in lines):
        raise ValueError(
            f"{path.name} is empty, or has lines of different length or without a name"
        )
    return pd.DataFrame(lines, dtype=object)
