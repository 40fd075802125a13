"""Files as GEO, Cell Ranger, kallisto, Seurat and spreadsheets leave them: read with the right
values, or named.

Each was reported to another project: sources in docs/log.md.
"""

from __future__ import annotations

import gzip

import h5py
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse
from scipy.io import mmwrite

from grn.cells.load import load_cells
from grn.cells.readers.registry import is_data_file, open_source, source_in_file
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError


@pytest.fixture
def same(cells):
    """Asserts that a path has the cells and counts of `cells`; returns what was read."""

    def check(path, **fields) -> AnnData:
        found = open_source(DataConfig(path=str(path), **fields))
        assert list(found.obs_names) == list(cells.obs_names)
        assert list(found.var_names) == list(cells.var_names)
        np.testing.assert_array_equal(sparse.csr_matrix(found.X).toarray(), cells.X.toarray())
        return found

    return check


def refuse(path) -> None:
    with pytest.raises(DataError) as caught:
        open_source(DataConfig(path=str(path)))
    assert "\n" not in str(caught.value) and caught.value.field in (None, "data.path")


@pytest.fixture
def others(cells) -> AnnData:
    """The same names with other counts."""
    return AnnData(cells.X + cells.X, obs=cells.obs, var=cells.var)


@pytest.mark.parametrize("prefix", ["GSM6567159_PDAC2_", "GSM1.", "a-"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_sample_with_the_prefix_of_geo(tmp_path, cells, same, write_mtx, prefix, packed):
    folder = write_mtx(tmp_path / "geo", cells, prefix=prefix, packed=packed)
    assert is_data_file(str(folder))
    same(folder)


def test_of_several_samples_one_is_named_by_its_matrix(tmp_path, cells, others, same, write_mtx):
    write_mtx(tmp_path, others, prefix="GSM1_")
    write_mtx(tmp_path, cells, prefix="GSM2_")
    refuse(tmp_path)
    same(tmp_path / "GSM2_matrix.mtx")
    (tmp_path / "GSM2_barcodes.tsv").unlink()
    refuse(tmp_path / "GSM2_matrix.mtx")  # barcodes are never those of another sample


@pytest.mark.parametrize(
    "place",
    [
        "filtered_feature_bc_matrix",
        "outs/filtered_feature_bc_matrix",
        "filtered_gene_bc_matrices/hg19",
        "Gene/filtered",
    ],
)
def test_the_folder_of_a_run_of_cell_ranger(tmp_path, cells, others, same, write_mtx, place):
    write_mtx(tmp_path / place, cells, packed=True)
    write_mtx(tmp_path / place.replace("filtered", "raw"), others)
    same(tmp_path)
    notes = load_cells(DataConfig(path=str(tmp_path)))[0].notes
    assert notes[0] == f"Cells are read from {tmp_path / place}."
    write_mtx(tmp_path / "outs/per_sample_outs/s1/count/sample_filtered_feature_bc_matrix", cells)
    refuse(tmp_path)


def test_files_that_a_browser_has_unpacked_keep_the_ending_gz(tmp_path, cells, same, write_mtx):
    for path in write_mtx(tmp_path, cells).iterdir():
        path.rename(path.with_name(path.name + ".gz"))
    same(tmp_path)


def test_the_matrix_of_kallisto_has_cells_as_rows(tmp_path, cells, same):
    mmwrite(tmp_path / "cells_x_genes.mtx", sparse.coo_matrix(cells.X))
    for what, names in {"barcodes": cells.obs_names, "genes": cells.var_names}.items():
        (tmp_path / f"cells_x_genes.{what}.txt").write_text("\n".join([*names, ""]))
    same(tmp_path)


def test_features_without_symbols_are_named_by_their_ids(tmp_path, cells, same, write_mtx):
    """As the tools of Nanopore write them."""
    write_mtx(tmp_path, cells)
    lines = [f"{name}\tunknown\tunknown\n" for name in cells.var_names]
    (tmp_path / "features.tsv").write_text("".join(lines))
    same(tmp_path)


def test_what_holds_no_one_matrix_of_cells_is_refused(tmp_path, cells, write_mtx, write_tenx):
    with_a_header = write_mtx(tmp_path / "header", cells) / "barcodes.tsv"
    with_a_header.write_text("barcode\n" + with_a_header.read_text())
    molecules, future = tmp_path / "molecule_info.h5", tmp_path / "cells.h5ad"
    with h5py.File(molecules, "w") as file:
        for name in ("barcode_idx", "feature_idx", "count", "umi", "barcodes"):
            file[name] = np.arange(5)
    cells.write_h5ad(future)
    with h5py.File(future, "a") as file:
        file["var"].attrs["encoding-type"] = "of-the-future"
    two = write_tenx(tmp_path / "two.h5", cells, genomes=("hg19", "mm10"), legacy=True)
    (tmp_path / "empty").mkdir()
    for path in (with_a_header.parent, molecules, future, two, tmp_path / "empty"):
        refuse(path)
    for ending in ("h5ad.gz", "tar.gz", "zip", "rds", "xlsx", "docx"):
        (tmp_path / f"cells.{ending}").write_bytes(b"any")
        refuse(tmp_path / f"cells.{ending}")
    for path in (tmp_path / "blod.h5ad", "scanpy:pbmc68k", "https://example.org/cells.h5ad"):
        refuse(path)


@pytest.mark.parametrize("name", ["cells.h5", "cells.hdf5"])
def test_an_h5ad_file_of_another_name(tmp_path, cells, same, name):
    cells.X = cells.X.toarray()
    cells.write_h5ad(tmp_path / name)
    with source_in_file(DataConfig(path=str(tmp_path / name)), everything=False) as opened:
        assert isinstance(opened.X, h5py.Dataset), "it stays in its file"
    cells.X = sparse.csr_matrix(cells.X)
    same(tmp_path / name)


def test_a_file_of_cell_ranger_that_is_called_h5ad(tmp_path, cells, same, write_tenx):
    same(write_tenx(tmp_path / "cells.h5ad", cells, genomes=("GRCh38",), legacy=True))


def test_a_loom_file_with_its_layers_and_attributes(tmp_path, cells, same):
    path, values = tmp_path / "cells.loom", cells.X.toarray()
    attributes = {
        "row_attrs/Gene": cells.var_names,
        "row_attrs/Accession": cells.var["gene_ids"],
        "col_attrs/CellID": cells.obs_names,
        "col_attrs/ClusterName": cells.obs["label"],
    }
    with h5py.File(path, "w") as file:
        file["matrix"], file["layers/unspliced"] = values.T, values.T + 1
        file["col_attrs/Embedding"] = np.zeros((cells.n_obs, 2))
        for name, texts in attributes.items():
            file[name] = np.array(texts, dtype="S")
    found = same(path)
    np.testing.assert_array_equal(found.layers["unspliced"].toarray(), values + 1)
    assert found.obs["ClusterName"].tolist() == cells.obs["label"].tolist()
    assert found.var["Accession"].tolist() == cells.var["gene_ids"].tolist()
    with h5py.File(path, "a") as file:
        del file["row_attrs/Gene"], file["row_attrs/Accession"]
    refuse(path)


# Tables of text


def table(cells: AnnData, **columns) -> pd.DataFrame:
    """Genes by cells, with columns before the cells."""
    found = cells.to_df().T.astype(int)
    for place, (name, values) in enumerate(columns.items()):
        found.insert(place, name, values)
    return found


def test_genes_of_a_table_are_named_by_their_symbols_wherever_these_stand(tmp_path, cells, same):
    path, genes = tmp_path / "cells.txt", {"orientation": "genes_by_cells"}
    symbols, ids = list(cells.var_names), list(cells.var["gene_ids"])
    starts = ["9", *["1;20"] * 11]
    places = {"Chr": "1;1", "Start": starts, "End": "9", "Strand": "+", "Length": 20}
    command = "# Program:featureCounts v2.0.1; Command:x\n"
    of_counts = command + table(cells, **places).to_csv(sep="\t")
    numbered = table(cells, gene_name=symbols).reset_index(drop=True).to_csv()
    ended = table(cells).to_csv(sep="\t", lineterminator="\n").replace("\n", "\t\n")
    for text in (of_counts, numbered, ended):
        path.write_text(text)
        same(path, **genes)
    path.write_text(table(cells, gene_id=ids).to_csv())
    assert same(path, **genes).var["gene_id"].tolist() == ids
    text = table(cells, gene_name=symbols).set_axis(pd.Index(ids, name="gene_id")).to_csv(sep="\t")
    path.write_text(text)
    assert same(path, **genes).var["gene_ids"].tolist() == ids
    path.write_text(text.replace("\tgene3\t", "\t\t"))
    named = open_source(DataConfig(path=str(path), **genes)).var_names
    assert list(named) == [*symbols[:3], ids[3], *symbols[4:]], "without a symbol, by the id"


def test_ids_of_transcripts_are_no_symbols(tmp_path, cells):
    """As FLAMES writes them: counts of transcripts, with those of a gene below each other."""
    ids = list(cells.var["gene_ids"])
    frame = table(cells, transcript_id=[f"ENST{place:011d}" for place in range(12)])
    twice = pd.Index([ids[0], ids[0], *ids[2:]], name="gene_id")
    frame.set_axis(twice).to_csv(tmp_path / "f.csv")
    fields = {"orientation": "genes_by_cells", "duplicates": "sum", "genes": "all"}
    found, _ = load_cells(DataConfig(path=str(tmp_path / "f.csv"), multiplicity="counts", **fields))
    assert found.vocabulary == (ids[0], *ids[2:])
    both = cells.X[:, :2].toarray().sum(1)
    np.testing.assert_array_equal(found.multiplicity[:, 0].toarray()[:, 0], both)


def test_labels_of_cells_in_a_table(tmp_path, cells, same):
    labelled = cells.to_df().astype(int)
    labelled.insert(0, "cell_type", ["a", "b"] * 20)
    labelled.to_csv(tmp_path / "cells.csv")
    fields = {"orientation": "cells_by_genes", "label_key": "cell_type", "genes": "all"}
    same(tmp_path / "cells.csv", **fields)
    found, _ = load_cells(DataConfig(path=str(tmp_path / "cells.csv"), **fields))
    assert found.classes == ("a", "b") and "'cell_type'" in found.notes[0]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
def test_a_table_as_excel_writes_unicode(tmp_path, cells, same, encoding, ending):
    content, path = table(cells).to_csv(sep="\t").encode(encoding), tmp_path / f"cells.{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    same(path, orientation="genes_by_cells")
