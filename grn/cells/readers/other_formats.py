"""Files that people have and grn does not read: what they are, and how to make a file of them that
it reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from grn.cells.readers.hdf5 import kind_of

UNPACK = "unpack it first"
OF_SEURAT = (
    "write its counts in R, those of Seurat by DropletUtils::write10xCounts(FOLDER, "
    "object[['RNA']]$counts)"
)


class Advice(NamedTuple):
    """A problem with a file, and what to do about it.

    problem: the end of a sentence that begins with the path.
    advice: the end of a sentence that tells the user what to do.
    """

    problem: str
    advice: str


MOLECULES = Advice(
    "is Cell Ranger's list of molecules, and no matrix of cells",
    "give filtered_feature_bc_matrix.h5, which lies beside it",
)
SEURAT = Advice("is a file of Seurat (R)", OF_SEURAT)
KINDS = {"molecules": MOLECULES, "h5seurat": SEURAT}
ENDINGS = {
    (".h5ad.gz", ".h5.gz", ".loom.gz"): Advice(
        "is packed, and a packed file cannot be read in parts", f"{UNPACK}: gunzip FILE"
    ),
    (".tar", ".tar.gz", ".tgz"): Advice("is an archive", f"{UNPACK}: tar -xf FILE"),
    (".zip",): Advice("is an archive", f"{UNPACK}: unzip FILE"),
    (".rds", ".rda", ".rdata", ".qs"): Advice("is a file of R", OF_SEURAT),
    (".h5seurat",): SEURAT,
    (".xlsx", ".xls"): Advice(
        "is a spreadsheet, which may have changed names such as MARCH1", "save it as .csv"
    ),
}
ADDRESSES = ("http://", "https://", "ftp://", "s3://", "gs://")


def advice_about(path: str) -> Advice | None:
    """Return what is known about a path to something that grn does not read; None: nothing, or grn
    reads it.
    """
    if path.lower().startswith(ADDRESSES):
        return Advice("is an address", "download the file first, and give its path")
    if (kind := kind_of(Path(path))) is not None:
        return KINDS.get(kind)
    if not Path(path).is_file():
        return None
    found = next(
        (about for endings, about in ENDINGS.items() if path.lower().endswith(endings)), None
    )
    return None if found is None else found._replace(advice=found.advice.replace("FILE", path))
