"""10x Cell Ranger: .h5 files, and folders with matrix.mtx."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.io import mmread

from grn.cells.readers.matrix import refuse_no_positions
from grn.config.schema import DataConfig
from grn.errors import DataError, one_line
from grn.io.atomic import instead_of_hdf5, refuse_endless, unpacked

GENES = "Gene Expression"
LEFT_OUT = "grn_left_out"  # key in uns: a sentence about the features that are not genes


def read_tenx_h5(path: Path, config: DataConfig) -> AnnData:
    """A feature-barcode matrix of Cell Ranger, any version; see `tenx_cells`. Raises DataError."""
    try:
        path.open("rb").close()  # where reading is forbidden, this error names the file; HDF5's own does not
        refuse_endless(path)
        with h5py.File(path, "r") as file:
            group = _matrix_group(path, file)
            features = _features(group)
            barcodes = _texts(group["barcodes"])
            parts = tuple(group[name][:] for name in ("data", "indices", "indptr"))
            shape = tuple(int(size) for size in group["shape"][:])
        refuse_no_positions(*parts[1:])
        if shape != (len(features), len(barcodes)):
            raise ValueError(
                f"its shape is {shape}, but it lists {len(features)} features and {len(barcodes)} barcodes"
            )
        counts = sparse.csr_matrix(parts, shape=shape[::-1])
        counts.check_format(full_check=True)  # before columns are chosen by these indices
    except (MemoryError, PermissionError, DataError):  # the first two are faults of the machine: cli/exit_codes.py
        raise
    except Exception as problem:  # a damaged file fails anywhere between HDF5, NumPy and SciPy
        if found := instead_of_hdf5(path):
            raise DataError(f"{path} {found}.") from problem
        raise DataError(
            f"{path} cannot be read as a 10x .h5 file ({one_line(problem)}); it is damaged, truncated or another "
            "format: copy or write it again."
        ) from problem
    return tenx_cells(path, counts, barcodes, features)


def tenx_cells(path: Path, counts: sparse.csr_matrix, barcodes: np.ndarray, features: pd.DataFrame) -> AnnData:
    """The features that are genes, by symbol (by id where there is none), as AnnData.

    counts [C, F].   features: columns name, gene_ids, and where known feature_types, ...; all but the name go to var.
    uns["grn_left_out"] has a sentence about the features that were left out. Raises DataError where none is a gene.
    """
    names = np.where(features["name"] == "", features["gene_ids"], features["name"])
    var = features.drop(columns="name").set_axis(pd.Index(names, dtype=object), axis=0)
    left_out = None
    if "feature_types" in var:
        kept = (var["feature_types"] == GENES).to_numpy()
        others = ", ".join(f"{kind}: {count}" for kind, count in Counter(var["feature_types"][~kept]).items())
        if not kept.any():
            raise DataError(f"{path} holds no features of type {GENES} ({others}); give a matrix of gene counts.")
        if not kept.all():
            left_out = f"{(~kept).sum()} of {len(kept)} features of {path} are not genes and are left out ({others})."
            counts, var = counts[:, np.flatnonzero(kept)], var[kept]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* names are not unique")  # data.duplicates decides
        adata = AnnData(counts, obs=pd.DataFrame(index=pd.Index(barcodes, dtype=object)), var=var)
    if left_out:
        adata.uns[LEFT_OUT] = left_out
    return adata


def _matrix_group(path: Path, file: h5py.File) -> h5py.Group:
    """The one group with a matrix: `matrix` since Cell Ranger 3; before, one group for each genome, named after it."""
    if "X" in file and "obs" in file:
        raise DataError(f"{path} is an AnnData file, not a 10x file; rename it so that it ends in .h5ad.")
    found = [
        name for name, group in file.items() if isinstance(group, h5py.Group) and {"barcodes", "indptr"} <= set(group)
    ]
    if not found:
        held = ", ".join(map(repr, file)) or "nothing"
        if isinstance(file.get("matrix"), h5py.Group):
            lost = " and ".join(sorted({"barcodes", "indptr"} - set(file["matrix"])))
            raise DataError(f"{path} is a 10x file whose matrix has no {lost}; it is damaged: copy or write it again.")
        raise DataError(
            f"{path} holds no 10x matrix (it holds {held}); give a file such as filtered_feature_bc_matrix.h5, or "
            "another format."
        )
    if len(found) > 1:
        raise DataError(
            f"{path} holds the matrices of {len(found)} genomes ({', '.join(found)}); write the cells of one of them "
            "to an .h5ad file (scanpy.read_10x_h5 has an option for it)."
        )
    return file[found[0]]


def _features(group: h5py.Group) -> pd.DataFrame:
    if "features" not in group and "gene_names" not in group:
        raise ValueError("its matrix has no features")
    if "features" not in group:  # before Cell Ranger 3
        return pd.DataFrame({"name": _texts(group["gene_names"]), "gene_ids": _texts(group["genes"])}, dtype=object)
    features = group["features"]
    ids = features["gene_id" if "gene_id" in features else "id"]  # features may be probes; gene_id is then the gene
    columns = {"name": features["name"], "gene_ids": ids, "feature_types": features["feature_type"]}
    if "genome" in features:
        columns["genome"] = features["genome"]
    return pd.DataFrame({name: _texts(column) for name, column in columns.items()}, dtype=object)


def _texts(values: h5py.Dataset) -> np.ndarray:
    return values.asstr()[:].astype(object)


MATRIX, BARCODES, FEATURES = ("matrix.mtx",), ("barcodes.tsv",), ("features.tsv", "genes.tsv")
NUMBERS = b"0123456789+-.eE \t\r\n"


def is_mtx_folder(folder: Path) -> bool:
    """Whether a file in it has the name of a 10x matrix."""
    return any(folder.glob("*matrix.mtx*"))


def read_mtx_folder(folder: Path, config: DataConfig) -> AnnData:
    """The genes of a 10x folder; see `tenx_cells`. Raises DataError."""
    matrix_file = _only(folder, MATRIX)
    barcodes_file, features_file = _only(folder, BARCODES), _only(folder, FEATURES)
    barcodes = _rows(barcodes_file, columns=1)
    features = _rows(features_file, columns=3)
    matrix = _matrix(matrix_file)
    if matrix.shape != (len(features), len(barcodes)):
        raise DataError(
            f"{matrix_file} has {matrix.shape[0]} rows and {matrix.shape[1]} columns, but {features_file.name} lists "
            f"{len(features)} features and {barcodes_file.name} {len(barcodes)} barcodes; "
            + _advice(matrix.shape, {features_file.name: features, barcodes_file.name: barcodes})
        )
    return tenx_cells(folder, matrix.T.tocsr(), barcodes[0].to_numpy(), _named(features))


def _advice(shape: tuple[int, ...], listed: dict[str, pd.DataFrame]) -> str:
    """What to do about a matrix of another shape than the features and barcodes, which are given by their files."""
    if shape == tuple(map(len, listed.values()))[::-1]:
        return "transpose it: 10x writes a row per feature."
    longer = [name for name, size in zip(listed, shape, strict=True) if len(listed[name]) == size + 1]
    if len(longer) == sum(len(listed[name]) != size for name, size in zip(listed, shape, strict=True)):
        first = " and ".join(f"{listed[name].iloc[0, 0]!r} of {name}" for name in longer)
        return f"give three files of one experiment, or remove the first line ({first}) if it is a header."
    return "give three files of one experiment."


def _only(folder: Path, names: tuple[str, ...]) -> Path:
    """The one file with one of these names, plain or .gz; of two, either could belong to the other files."""
    found = [path for name in names for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
    if len(found) > 1:
        raise DataError(f"{folder} holds both {' and '.join(path.name for path in found)}; remove one of them.")
    if not found:
        raise DataError(f"{folder} is a folder without {' or '.join(names)} (or .gz); {_what_to_do(folder, names[0])}")
    return found[0]


def _what_to_do(folder: Path, name: str) -> str:
    if (folder / "config.yaml").is_file() and (folder / "log.txt").is_file():
        return f"it is a run of grn: give its cells, or its configuration, {folder / 'config.yaml'}."
    if any((folder / own).is_file() for own in ("zarr.json", ".zgroup")):
        return "it is a .zarr folder: rename it so that it ends in .zarr."
    if (folder / name).is_dir():
        return f"{name} is a folder itself: put the file in its place."
    if renamed := sorted(path.name for path in folder.glob(f"*{name}*")):
        return f"rename {renamed[0]} to {name}{'.gz' if renamed[0].endswith('.gz') else ''}."
    if below := sorted(folder.glob(f"*/{name}*")):
        return f"did you mean {below[0].parent}?"
    return "give a 10x folder (matrix.mtx, barcodes.tsv and features.tsv or genes.tsv), a .zarr folder or a file."


def _rows(path: Path, columns: int) -> pd.DataFrame:
    """The first `columns` columns of a file without a header, or all it has. Quotes are part of the text."""
    with unpacked(path) as file:
        content = file.read()
    try:
        lines = [line.rstrip("\r").split("\t") for line in content.decode("utf-8").rstrip("\r\n").split("\n")]
    except UnicodeDecodeError:
        raise DataError(
            f"{path} is not text in UTF-8; write it again, or add .gz to its name if it is compressed."
        ) from None
    if lines == [[""]]:
        raise DataError(f"{path} is empty; copy or write it again.")
    if columns > 1 and all(len(fields) == 1 and fields[0].count(",") > 1 for fields in lines):
        raise DataError(f"{path} is separated by commas ({lines[0][0][:60]!r}); write it with tabs, as 10x does.")
    for number, fields in enumerate(lines, 1):
        if len(fields) != len(lines[0]):
            raise DataError(
                f"{path}, line {number} has {len(fields)} columns, but line 1 has {len(lines[0])}; write the file "
                "again."
            )
        if not fields[0]:
            raise DataError(f"{path}, line {number} has no name in its first column; write the file again.")
    return pd.DataFrame([fields[:columns] for fields in lines], dtype=object)


def _named(features: pd.DataFrame) -> pd.DataFrame:
    """Columns name, gene_ids and where known feature_types: genes.tsv has no types, a bare list only names."""
    named = pd.DataFrame({"name": features[min(1, features.shape[1] - 1)], "gene_ids": features[0]})
    return named.assign(feature_types=features[2]) if 2 in features else named


def _matrix(path: Path) -> sparse.coo_matrix:
    with unpacked(path) as file:
        content = file.read()  # to the end: a damaged .gz fails only there
    banner, _, rest = content.partition(b"\n")
    kind = banner.decode("ascii", "replace").lower().split()
    if kind not in [["%%matrixmarket", "matrix", "coordinate", number, "general"] for number in ("integer", "real")]:
        raise DataError(
            f"{path} does not begin with '%%MatrixMarket matrix coordinate integer general' but with "
            f"{' '.join(kind)[:60]!r}; write it as 10x does, or give another format."
        )
    body = rest
    while body.startswith(b"%"):
        body = body.partition(b"\n")[2]
    if strange := body.translate(None, NUMBERS)[:1]:
        line = content.count(b"\n", 0, len(content) - len(body) + body.index(strange)) + 1
        raise DataError(f"{path}, line {line} holds something that is not a number; write the file again.")
    size, entries = body.partition(b"\n")[0].split(), body.count(b"\n")  # one more where the last line has no end
    if len(size) == 3 and size[2].isdigit() and int(size[2]) > entries:
        raise DataError(
            f"{path} is damaged or truncated: it should hold {int(size[2])} values, and {max(entries - 1, 0)} lines "
            "follow; copy or write it again."
        )
    try:
        # Always read as real numbers: under the banner `integer`, SciPy would cut fractions off.
        matrix = sparse.coo_matrix(mmread(io.BytesIO(b"%%MatrixMarket matrix coordinate real general\n" + rest)))
    except (MemoryError, PermissionError):  # faults of the machine: see cli/exit_codes.py
        raise
    except Exception as problem:
        raise DataError(
            f"{path} cannot be read as .mtx ({one_line(problem)}); it is damaged or truncated: copy or write it again."
        ) from problem
    if not np.isfinite(matrix.data).all():
        raise DataError(f"{path} holds a number that is too large; write it again.")
    return matrix
