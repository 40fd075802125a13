"""Files as GEO, Cell Ranger, kallisto, Seurat and spreadsheets leave them: read with the right
values, or named.

Each was reported to another project: sources in docs/log.md.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.io import mmwrite

from grn.cells.load import load_cells
from grn.cells.readers.registry import is_data_file, open_source, source_in_file
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError

GENES = [f"GENE{place}" for place in range(12)]
IDS = [f"ENSG{place:011d}" for place in range(12)]
CELLS = [f"ACGTACGTAC{letter}{other}-1" for letter in "ACGT" for other in "ACGT"]
COUNTS = np.random.default_rng(3).poisson(2.0, (16, 12)).astype(np.float32)


def assert_counts(path, **fields) -> anndata.AnnData:
    """The cells, which are those of COUNTS by their symbols."""
    found = open_source(DataConfig(path=str(path), **fields))
    assert (list(found.obs_names), list(found.var_names)) == (CELLS, GENES)
    np.testing.assert_array_equal(sparse.csr_matrix(found.X).toarray(), COUNTS)
    return found


def refuse(path, **fields) -> None:
    with pytest.raises(DataError) as caught:
        open_source(DataConfig(path=str(path), **fields))
    assert "\n" not in str(caught.value)


def write_sample(
    folder: Path, prefix: str = "", counts: np.ndarray = COUNTS, pack=lambda text: text
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    ending = "" if pack(b"x") == b"x" else ".gz"
    mmwrite(folder / "written.mtx", sparse.coo_matrix(counts.T))
    texts = {
        "matrix.mtx": (folder / "written.mtx").read_bytes(),
        "barcodes.tsv": "".join(f"{name}\n" for name in CELLS).encode(),
        "features.tsv": "".join(
            f"{own}\t{name}\tGene Expression\n" for own, name in zip(IDS, GENES, strict=True)
        ).encode(),
    }
    (folder / "written.mtx").unlink()
    for name, text in texts.items():
        (folder / f"{prefix}{name}{ending}").write_bytes(pack(text))
    return folder


def cells() -> anndata.AnnData:
    return anndata.AnnData(COUNTS, obs=pd.DataFrame(index=CELLS), var=pd.DataFrame(index=GENES))


@pytest.mark.parametrize("prefix", ["GSM6567159_PDAC2_", "GSM1.", "a-"])
@pytest.mark.parametrize("pack", [lambda text: text, gzip.compress])
def test_a_sample_with_the_prefix_of_geo(tmp_path, prefix, pack):
    assert is_data_file(str(write_sample(tmp_path / "geo", prefix, pack=pack)))
    assert_counts(tmp_path / "geo")


def test_of_several_samples_one_is_named_by_its_matrix(tmp_path):
    write_sample(tmp_path / "geo", "GSM1_", COUNTS + 1)
    write_sample(tmp_path / "geo", "GSM2_")
    refuse(tmp_path / "geo")
    assert_counts(tmp_path / "geo" / "GSM2_matrix.mtx")
    (tmp_path / "geo" / "GSM2_barcodes.tsv").unlink()
    refuse(tmp_path / "geo" / "GSM2_matrix.mtx")  # barcodes are never those of another sample


@pytest.mark.parametrize(
    "place",
    [
        "filtered_feature_bc_matrix",
        "outs/filtered_feature_bc_matrix",
        "filtered_gene_bc_matrices/hg19",
        "Gene/filtered",
    ],
)
def test_the_folder_of_a_run_of_cell_ranger(tmp_path, place):
    write_sample(tmp_path / "run" / place, pack=gzip.compress)
    write_sample(tmp_path / "run" / place.replace("filtered", "raw"), counts=COUNTS + 1)
    assert_counts(tmp_path / "run")
    notes = load_cells(DataConfig(path=str(tmp_path / "run")))[0].notes
    assert notes[0] == f"Cells are read from {tmp_path / 'run' / place}."
    write_sample(tmp_path / "run/outs/per_sample_outs/s1/count/sample_filtered_feature_bc_matrix")
    refuse(tmp_path / "run")


def test_files_that_a_browser_has_unpacked_keep_the_ending_gz(tmp_path):
    for path in write_sample(tmp_path / "folder").iterdir():
        path.rename(path.with_name(path.name + ".gz"))
    assert_counts(tmp_path / "folder")


def test_the_matrix_of_kallisto_has_cells_as_rows(tmp_path):
    mmwrite(tmp_path / "cells_x_genes.mtx", sparse.coo_matrix(COUNTS))
    for what, names in {"barcodes": CELLS, "genes": GENES}.items():
        (tmp_path / f"cells_x_genes.{what}.txt").write_text("".join(f"{name}\n" for name in names))
    assert_counts(tmp_path)


def test_features_without_symbols_are_named_by_their_ids(tmp_path):
    write_sample(tmp_path / "nanopore")
    (tmp_path / "nanopore" / "features.tsv").write_text(
        "".join(f"{name}\tunknown\tunknown\n" for name in GENES)
    )
    assert_counts(tmp_path / "nanopore")


def with_a_header(folder: Path) -> Path:
    barcodes = write_sample(folder / "header") / "barcodes.tsv"
    barcodes.write_text("barcode\n" + barcodes.read_text())
    return folder / "header"


def of_two_genomes(folder: Path) -> Path:
    with h5py.File(folder / "two.h5", "w") as file:
        for genome in ("hg19", "mm10"):
            write_group(file.create_group(genome), genome)
    return folder / "two.h5"


def list_of_molecules(folder: Path) -> Path:
    with h5py.File(folder / "molecule_info.h5", "w") as file:
        for name in ("barcode_idx", "feature_idx", "count", "umi", "barcodes"):
            file[name] = np.arange(5)
    return folder / "molecule_info.h5"


def of_the_future(folder: Path) -> Path:
    cells().write_h5ad(folder / "cells.h5ad")
    with h5py.File(folder / "cells.h5ad", "a") as file:
        file["var"].attrs["encoding-type"] = "of-the-future"
    return folder / "cells.h5ad"


def of_bytes(name: str):
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(b"any")
        return folder / name

    return write


OTHERS = ("h5ad.gz", "tar.gz", "zip", "rds", "xlsx")


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: folder,
        lambda folder: "https://example.org/cells.h5ad",
        with_a_header,
        of_two_genomes,
        list_of_molecules,
        of_the_future,
        *(of_bytes(f"cells.{ending}") for ending in OTHERS),
    ],
)
def test_what_holds_no_one_matrix_of_cells_is_refused(write, tmp_path):
    refuse(write(tmp_path))


def write_group(group: h5py.Group, genome: str | None) -> None:
    stored = sparse.csr_matrix(COUNTS)
    for name in ("data", "indices", "indptr"):
        group[name] = getattr(stored, name).astype(np.int32)
    group["shape"], group["barcodes"] = np.array(COUNTS.shape[::-1]), np.array(CELLS, dtype="S")
    if genome:
        group["genes"], group["gene_names"] = np.array(IDS, dtype="S"), np.array(GENES, dtype="S")


@pytest.mark.parametrize("name", ["cells.h5", "cells.hdf5"])
def test_an_h5ad_file_of_another_name(tmp_path, name):
    cells().write_h5ad(tmp_path / name)
    assert_counts(tmp_path / name)
    with source_in_file(DataConfig(path=str(tmp_path / name)), everything=False) as opened:
        assert isinstance(opened.X, h5py.Dataset), "it stays in its file"


def test_a_file_of_cell_ranger_that_is_called_h5ad(tmp_path):
    with h5py.File(tmp_path / "cells.h5ad", "w") as file:
        write_group(file.create_group("GRCh38"), "GRCh38")
    assert_counts(tmp_path / "cells.h5ad")


def test_a_loom_file_with_its_layers_and_attributes(tmp_path):
    with h5py.File(tmp_path / "cells.loom", "w") as file:
        file["matrix"] = COUNTS.T
        file["layers/unspliced"] = COUNTS.T + 1
        file["row_attrs/Gene"], file["row_attrs/Accession"] = (
            np.array(GENES, dtype="S"),
            np.array(IDS, dtype="S"),
        )
        file["col_attrs/CellID"] = np.array(CELLS, dtype="S")
        file["col_attrs/ClusterName"] = np.array(["a", "b"] * 8, dtype="S")
        file["col_attrs/Embedding"] = np.zeros((16, 2))
    found = assert_counts(tmp_path / "cells.loom")
    np.testing.assert_array_equal(found.layers["unspliced"].toarray(), COUNTS + 1)
    assert (
        found.obs["ClusterName"].tolist() == ["a", "b"] * 8
        and found.var["Accession"].tolist() == IDS
    )
    with h5py.File(tmp_path / "cells.loom", "a") as file:
        del file["row_attrs/Gene"], file["row_attrs/Accession"]
    refuse(tmp_path / "cells.loom")


# Tables of text


def table(**columns) -> pd.DataFrame:
    """Genes by cells, with columns before the cells."""
    found = pd.DataFrame(COUNTS.T.astype(int), index=pd.Index(GENES, name="gene"), columns=CELLS)
    for place, (name, values) in enumerate(columns.items()):
        found.insert(place, name, values)
    return found


def test_a_table_with_ids_and_symbols_is_named_by_the_symbols(tmp_path):
    text = table(gene_name=GENES).set_axis(pd.Index(IDS, name="gene_id")).to_csv(sep="\t")
    (tmp_path / "cells.tsv").write_text(text)
    found = assert_counts(tmp_path / "cells.tsv", orientation="genes_by_cells")
    assert found.var["gene_ids"].tolist() == IDS
    # a gene without a symbol keeps its id
    (tmp_path / "cells.tsv").write_text(text.replace("\tGENE3\t", "\t\t"))
    (tmp_path / "symbols.csv").write_text(table(gene_id=IDS).to_csv())
    named = open_source(
        DataConfig(path=str(tmp_path / "cells.tsv"), orientation="genes_by_cells")
    ).var_names
    assert list(named) == [*GENES[:3], IDS[3], *GENES[4:]]
    found = assert_counts(tmp_path / "symbols.csv", orientation="genes_by_cells")
    assert found.var["gene_id"].tolist() == IDS, "the symbols come first"


def test_ids_of_transcripts_are_no_symbols(tmp_path):
    """As FLAMES writes them: counts of transcripts, with those of a gene below each other."""
    transcripts = [f"ENST{place:011d}" for place in range(12)]
    table(transcript_id=transcripts).set_axis(
        pd.Index([IDS[0]] * 2 + IDS[2:], name="gene_id")
    ).to_csv(tmp_path / "f.csv")
    config = DataConfig(
        path=str(tmp_path / "f.csv"), orientation="genes_by_cells", duplicates="sum", genes="all"
    )
    cells, _ = load_cells(config.model_copy(update={"multiplicity": "counts"}))
    assert cells.vocabulary == (IDS[0], *IDS[2:])
    np.testing.assert_array_equal(cells.multiplicity[:, 0].toarray()[:, 0], COUNTS[:, :2].sum(1))


def test_a_table_with_row_numbers_before_the_symbols(tmp_path):
    table(gene_name=GENES).reset_index(drop=True).to_csv(tmp_path / "cells.csv")
    assert_counts(tmp_path / "cells.csv", orientation="genes_by_cells")


def test_the_table_of_featurecounts(tmp_path):
    places = {
        "Chr": "1;1",
        "Start": ["9", *["1;20"] * 11],
        "End": "10;30",
        "Strand": "+;+",
        "Length": 20,
    }
    text = "# Program:featureCounts v2.0.1; Command:x\n" + table(**places).to_csv(sep="\t")
    (tmp_path / "counts.txt").write_text(text)
    assert_counts(tmp_path / "counts.txt", orientation="genes_by_cells")


def test_labels_of_cells_in_a_table(tmp_path):
    labelled = pd.DataFrame(COUNTS.astype(int), index=CELLS, columns=GENES)
    labelled.insert(0, "cell_type", ["a", "b"] * 8)
    labelled.to_csv(tmp_path / "cells.csv")
    assert_counts(tmp_path / "cells.csv", orientation="cells_by_genes")
    cells, _ = load_cells(
        DataConfig(
            path=str(tmp_path / "cells.csv"),
            orientation="cells_by_genes",
            label_key="cell_type",
            genes="all",
        )
    )
    assert cells.classes == ("a", "b") and "'cell_type'" in cells.notes[0]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_table_as_excel_writes_unicode(tmp_path, encoding, packed):
    content = table().to_csv(sep="\t").encode(encoding)
    path = tmp_path / ("cells.txt.gz" if packed else "cells.txt")
    path.write_bytes(gzip.compress(content) if packed else content)
    assert_counts(path, orientation="genes_by_cells")


def test_separators_at_the_end_of_every_line(tmp_path):
    (tmp_path / "cells.tsv").write_text(
        "".join(f"{line}\t\n" for line in table().to_csv(sep="\t").splitlines())
    )
    assert_counts(tmp_path / "cells.tsv", orientation="genes_by_cells")
