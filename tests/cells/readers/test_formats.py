"""The same cells in every format are read as the same cells; a damaged or ambiguous file is refused in one sentence."""

from __future__ import annotations

import gzip
import io
import re
import shutil
from pathlib import Path

import h5py
import numcodecs
import numpy as np
import pandas as pd
import pytest
import zarr
from anndata import AnnData
from anndata import settings as anndata_settings
from scipy import sparse
from scipy.io import mmwrite

from grn.cells.load import load_cells
from grn.cells.readers.registry import is_data_file, open_source
from grn.config.schema import DataConfig
from grn.errors import ConfigError, DataError

NAMES = ["NA", "nan", "null", "TRUE", "1E5", "MARCH1", "a b", "HLA-A", "None", "g'x", "inf", "#g"]  # all of them genes
BARCODES = [f"{''.join('ACGT'[int(digit)] for digit in np.base_repr(place, 4).zfill(8))}-1" for place in range(40)]


@pytest.fixture
def plain(adata) -> AnnData:
    """Counts with names that other readers take for missing values, numbers or comments; var has ids, too."""
    adata.var_names = NAMES
    adata.var["gene_ids"] = [f"ENSG{place:011d}" for place in range(len(NAMES))]
    adata.obs_names = BARCODES
    return adata


def write_tenx(path: Path, adata: AnnData, types=None, names=None, genomes=("GRCh38",), legacy=False) -> Path:
    """As Cell Ranger writes it: the columns of a matrix of features by barcodes, texts of a fixed length."""
    names = np.array(adata.var_names if names is None else names, dtype="S")
    ids = np.array(adata.var["gene_ids"], dtype="S")
    counts = sparse.csr_matrix(adata.X)
    with h5py.File(path, "w") as file:
        for genome in genomes:
            group = file.create_group(genome if legacy else "matrix")
            group["data"], group["indices"] = counts.data.astype(np.int32), counts.indices.astype(np.int64)
            group["indptr"], group["shape"] = counts.indptr.astype(np.int64), np.array(counts.shape[::-1], np.int32)
            group["barcodes"] = np.array(adata.obs_names, dtype="S")
            if legacy:
                group["genes"], group["gene_names"] = ids, names
                continue
            features = group.create_group("features")
            features["id"], features["name"] = ids, names
            features["feature_type"] = np.array(types or ["Gene Expression"] * len(names), dtype="S")
            features["genome"] = np.array(list(genomes) * len(names), dtype="S")
    return path


def write_mtx(folder: Path, adata: AnnData, *, packed=False, legacy=False, types=None) -> Path:
    folder.mkdir()
    matrix = io.BytesIO()
    mmwrite(matrix, sparse.coo_matrix(adata.X.T).astype(np.int64), comment="written by a test")
    features = [[gene, name] for gene, name in zip(adata.var["gene_ids"], adata.var_names, strict=True)]
    if not legacy:
        features = [[*each, kind] for each, kind in zip(features, types or ["Gene Expression"] * 99, strict=False)]
    texts = {
        "matrix.mtx": matrix.getvalue(),
        "barcodes.tsv": "".join(f"{name}\n" for name in adata.obs_names).encode(),
        "genes.tsv" if legacy else "features.tsv": "".join("\t".join(each) + "\n" for each in features).encode(),
    }
    for name, text in texts.items():
        (folder / f"{name}{'.gz' if packed else ''}").write_bytes(gzip.compress(text) if packed else text)
    return folder


def write_csv(path: Path, adata: AnnData, *, orientation="cells_by_genes", **options) -> Path:
    frame = adata.to_df()
    (frame if orientation == "cells_by_genes" else frame.T).to_csv(path, **options)
    return path


def assert_same(found: AnnData, expected: AnnData) -> None:
    assert list(found.obs_names) == list(expected.obs_names)
    assert list(found.var_names) == list(expected.var_names)
    assert all(type(name) is str for name in found.var_names)
    np.testing.assert_array_equal(sparse.csr_matrix(found.X).toarray(), sparse.csr_matrix(expected.X).toarray())


WRITERS = {
    "10x": lambda folder, adata: write_tenx(folder / "cells.h5", adata),
    "10x before version 3": lambda folder, adata: write_tenx(folder / "cells.h5", adata, legacy=True),
    "mtx": lambda folder, adata: write_mtx(folder / "mtx", adata),
    "mtx.gz": lambda folder, adata: write_mtx(folder / "mtx", adata, packed=True),
    "mtx before version 3": lambda folder, adata: write_mtx(folder / "mtx", adata, legacy=True),
    "csv": lambda folder, adata: write_csv(folder / "cells.csv", adata),
    "csv.gz": lambda folder, adata: write_csv(folder / "cells.csv.gz", adata),
    "tsv": lambda folder, adata: write_csv(folder / "cells.tsv", adata, sep="\t"),
    "txt of R": lambda folder, adata: write_csv(folder / "cells.txt", adata, sep=" ", quoting=2),
}


def write_zarr(folder: Path, adata: AnnData) -> Path:
    adata.write_zarr(folder / "cells.zarr")
    return folder / "cells.zarr"


def write_h5ad(folder: Path, adata: AnnData) -> Path:
    adata.write_h5ad(folder / "cells.h5ad")
    return folder / "cells.h5ad"


@pytest.mark.parametrize("write_it", [*WRITERS.values(), write_zarr], ids=[*WRITERS, "zarr"])
def test_every_format_gives_the_cells_of_h5ad(plain, write, tmp_path, write_it):
    expected = DataConfig(path=write(plain), regulators=["NA", "nan"], genes=8)
    path = write_it(tmp_path, plain)
    text = "cells_by_genes" if path.suffix in {".csv", ".gz", ".tsv", ".txt"} else None
    config = expected.model_copy(update={"path": str(path), "orientation": text})
    assert is_data_file(str(path))
    assert_same(open_source(config), plain)
    (found, split), (cells, expected_split) = load_cells(config), load_cells(expected)
    assert found.vocabulary == cells.vocabulary and found.notes == cells.notes
    np.testing.assert_array_equal(found.multiplicity.toarray(), cells.multiplicity.toarray())
    np.testing.assert_array_equal(found.regulators, cells.regulators)
    np.testing.assert_array_equal(found.obs_names, cells.obs_names)
    np.testing.assert_array_equal(split.train, expected_split.train)


@pytest.mark.parametrize("name", ["cells.csv", "cells.tsv.gz"])
def test_a_text_file_may_have_a_row_per_gene(plain, tmp_path, name):
    path = write_csv(tmp_path / name, plain, orientation="genes_by_cells", sep="\t" if "tsv" in name else ";")
    assert_same(open_source(DataConfig(path=str(path), orientation="genes_by_cells")), plain)


def test_a_header_may_lack_the_corner(tmp_path):
    (tmp_path / "r.txt").write_text('"g1" "g2"\n"c1" 1 0\n"c2" 0 2.5\n')
    found = open_source(DataConfig(path=str(tmp_path / "r.txt"), orientation="cells_by_genes"))
    assert (list(found.obs_names), list(found.var_names)) == (["c1", "c2"], ["g1", "g2"])
    np.testing.assert_array_equal(found.X.toarray(), [[1, 0], [0, 2.5]])


def test_text_keeps_every_digit(write, tmp_path):
    """Fractions as an .h5ad of float64 holds them, not as the nearest float32."""
    values = np.array([[0.1, 1 / 3], [2**24 + 1, 1e-30]])
    adata = AnnData(values, obs=pd.DataFrame(index=["c1", "c2"]), var=pd.DataFrame(index=["g1", "g2"]))
    path = write_csv(tmp_path / "cells.csv", adata)
    found = open_source(DataConfig(path=str(path), orientation="cells_by_genes"))
    np.testing.assert_array_equal(found.X.toarray(), values)


@pytest.mark.parametrize(
    "write_it",
    [WRITERS["10x"], WRITERS["mtx"], WRITERS["csv"], write_h5ad, write_zarr],
    ids=["10x", "mtx", "csv", "h5ad", "zarr"],
)
def test_genes_of_one_name_are_left_to_data_duplicates(plain, tmp_path, recwarn, write_it):
    plain.var_names = ["TWICE", "TWICE", *NAMES[2:]]
    path = write_it(tmp_path, plain)
    config = DataConfig(path=str(path), orientation="cells_by_genes" if path.suffix == ".csv" else None, genes="all")
    with pytest.raises(DataError, match=r"'TWICE'.*set data\.duplicates: sum"):
        load_cells(config)
    cells, _ = load_cells(config.model_copy(update={"duplicates": "sum", "multiplicity": "counts"}))
    assert cells.vocabulary == ("TWICE", *NAMES[2:])
    np.testing.assert_array_equal(
        cells.multiplicity[:, [0]].toarray(), np.asarray(plain.X[:, :2].sum(1)).reshape(-1, 1)
    )
    assert not [each for each in recwarn if "not unique" in str(each.message)]
    if path.suffix != ".csv":
        assert load_cells(config.model_copy(update={"gene_key": "gene_ids"}))[0].vocabulary == tuple(
            plain.var["gene_ids"]
        )


@pytest.mark.parametrize("write_it", [write_tenx, write_mtx])
def test_features_that_are_not_genes_are_left_out_with_a_note(plain, tmp_path, write_it):
    types = ["Antibody Capture", *["Gene Expression"] * 9, "Antibody Capture", "CRISPR Guide Capture"]
    path = write_it(tmp_path / "cells.h5", plain, types=types)
    config = DataConfig(path=str(path), genes="all")
    if path.is_dir():
        path = path.rename(tmp_path / "folder")
        config = DataConfig(path=str(path), genes="all")
    assert_same(open_source(config), plain[:, 1:10])
    cells, _ = load_cells(config)
    assert cells.notes[0] == (
        f"3 of 12 features of {path} are not genes and are left out (Antibody Capture: 2, CRISPR Guide Capture: 1)."
    )


def test_a_feature_without_a_symbol_goes_by_its_id(plain, tmp_path):
    path = write_tenx(tmp_path / "cells.h5", plain, names=["", *NAMES[1:]])
    assert list(open_source(DataConfig(path=str(path))).var_names) == ["ENSG00000000000", *NAMES[1:]]


# Refused


def refusal(path: Path, **fields) -> str:
    with pytest.raises((DataError, ConfigError)) as caught:
        open_source(DataConfig(path=str(path), **fields))
    message = str(caught.value)
    assert "\n" not in message and path.name in message and message.endswith((".", "?"))
    return message


def test_a_text_file_needs_an_orientation(plain, tmp_path):
    message = refusal(write_csv(tmp_path / "cells.csv", plain))
    assert "set data.orientation to cells_by_genes (a row per cell) or genes_by_cells (a row per gene)" in message


@pytest.mark.parametrize("name", ["10x", "mtx", "zarr"])
def test_only_text_files_take_an_orientation(plain, tmp_path, name):
    path = (WRITERS | {"zarr": write_zarr})[name](tmp_path, plain)
    assert "is not a text file and needs none; set data.orientation: null" in refusal(
        path, orientation="cells_by_genes"
    )


def test_a_source_without_a_file_takes_no_orientation():
    with pytest.raises(ConfigError, match=r"simulated: is not a text file and needs none"):
        open_source(DataConfig(path="simulated:", orientation="cells_by_genes"))


@pytest.mark.parametrize("name", ["10x", "mtx", "zarr", "csv"])
def test_only_h5ad_is_read_piece_by_piece(plain, tmp_path, name):
    path = (WRITERS | {"zarr": write_zarr})[name](tmp_path, plain)
    assert "set data.backed: false" in refusal(path, backed=True)


@pytest.mark.parametrize("right", ["cells_by_genes", "genes_by_cells"])
@pytest.mark.parametrize("evidence", ["barcodes", "regulators", "genes", "ids"])
def test_names_that_contradict_the_orientation_are_refused(plain, tmp_path, right, evidence):
    fields = {}
    if evidence != "barcodes":
        plain.obs_names = [f"cell {place}" for place in range(plain.n_obs)]
    if evidence == "regulators":
        fields["regulators"] = ["NA", "null", "absent"]
    if evidence == "genes":
        (tmp_path / "genes.txt").write_text("NA\nnull\n")
        fields["genes"] = str(tmp_path / "genes.txt")
    if evidence == "ids":
        plain.var_names = plain.var["gene_ids"].to_numpy()
    path = write_csv(tmp_path / "cells.csv", plain, orientation=right)
    wrong = {"cells_by_genes": "genes_by_cells", "genes_by_cells": "cells_by_genes"}[right]
    assert f"set data.orientation to {right}." in refusal(path, orientation=wrong, **fields)
    assert_same(open_source(DataConfig(path=str(path), orientation=right, **fields)), plain)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("cells\nc1\n", "has a single column, 'cells'"),
        (",g1,g2\n", "has a header but no rows"),
        (",g1,g2\nc1,1,x\n", "line 2: column 'g2' is 'x', which is not a finite number"),
        (",g1,g2\nc1,1,2\n\nc2,,2\n", "line 4: column 'g1' is empty"),
        (",g1,g2\nc1,1,NA\n", "column 'g2' is 'NA'"),
        (",g1,g2\nc1,1,nan\n", "column 'g2' is 'nan'"),
        (",g1,g2\nc1,1,inf\n", "column 'g2' is 'inf'"),
        (",g1,g2\nc1,1,1e39\n", "column 'g2' is '1e39'"),
        (",g1,g2\nc1,1,TRUE\n", "column 'g2' is 'TRUE'"),
        (",g1,g2\nc1,1,1_0\n", "column 'g2' is '1_0'"),
        (",g1,g2\nc1,1,2\0\n", "line 2: column 'g2' is '2"),
        (",g1,type\nc1,1,B\n", "column 'type' is 'B', which is not a finite number; correct it, or remove"),
        ('\tg1\tg2\nc1\t1\t"1,5"\n', "column 'g2' is '1,5'"),
        (",g1,g2\nc1,1,2\nc2,1\n", "line 3 has 2 fields where 3 are expected"),
        (",g1,g2\nc1,1,2\nc2,1,2,3\n", "line 3 has 4 fields where 3 are expected"),
        (",g1,g2\nc1,1,2,3,4\n", "line 2 has 5 fields, but the header has 3"),
        (",g1,g2\nc1,1,2,\nc2,1,2,\n", "has no name for column 1"),
        (",g1,\nc1,1,2\n", "has no name for column 3"),
        (",g1,g2\n,1,2\n", "line 2 begins with an empty name"),
        (",g1,g2\nc1,1,2\nc1,1,2\n", "has 2 cells called 'c1'"),
        (",g1,g2\nc1,1,2\n,g1,g2\n", "line 3 begins with an empty name"),
        ("c0,0,3,0\nc1,1,0,2\n", "has numbers in the first line (0, 3, 0), where names belong"),
        ("g1,g2\n0,3\n0,2\n", "has numbers in the first column (0, 0), where names belong"),
        (',g1,g2\nc1,1,2\nc2,"1,2\nc3,1,2\n', "line 3 cannot be read"),
        (",g1,g2\n,g1,g2\nc1,1,2\n", "line 2 begins with an empty name; name the row, or remove it"),
    ],
)
def test_text_that_is_not_a_matrix_is_refused(tmp_path, text, sentence):
    (tmp_path / "cells.csv").write_text(text)
    assert sentence in refusal(tmp_path / "cells.csv", orientation="cells_by_genes")


def test_text_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "cells.csv").write_bytes(",gène\nc1,1\n".encode("latin-1"))
    assert "is not text in UTF-8" in refusal(tmp_path / "cells.csv", orientation="cells_by_genes")


def test_names_may_be_numbers(tmp_path):
    """Entrez ids over cells that are counted, as pandas writes them."""
    (tmp_path / "cells.csv").write_text(",7157,672\n0,1,2\n1,3,4\n")
    found = open_source(DataConfig(path=str(tmp_path / "cells.csv"), orientation="cells_by_genes"))
    assert (list(found.obs_names), list(found.var_names)) == (["0", "1"], ["7157", "672"])


@pytest.mark.parametrize("kept", [5, 60, -4])
def test_a_truncated_gz_is_refused(plain, tmp_path, kept):
    path = write_csv(tmp_path / "cells.csv.gz", plain)
    path.write_bytes(path.read_bytes()[:kept])
    assert "is damaged or truncated" in refusal(path, orientation="cells_by_genes")
    for name in ("matrix.mtx", "barcodes.tsv", "features.tsv"):
        folder = write_mtx(tmp_path / name, plain, packed=True)
        part = folder / f"{name}.gz"
        part.write_bytes(part.read_bytes()[:kept])
        assert "is damaged or truncated" in refusal(part.parent)
        shutil.rmtree(folder)


def test_row_pointers_of_a_10x_file_are_whole_numbers(plain, tmp_path):
    tenx = write_tenx(tmp_path / "cells.h5", plain)
    with h5py.File(tenx, "r+") as file:
        indptr = file["matrix/indptr"][:] + 0.5
        del file["matrix/indptr"]
        file["matrix/indptr"] = indptr
    with pytest.raises(DataError, match="its indices are of type float64, not whole numbers"):
        open_source(DataConfig(path=str(tenx)))


def test_a_folder_in_the_place_of_a_file_is_named(plain, tmp_path):
    folder = write_mtx(tmp_path / "nested", plain)
    (folder / "features.tsv").unlink()
    (folder / "features.tsv").mkdir()
    with pytest.raises(DataError, match=r"features\.tsv is a folder itself: put the file in its place"):
        open_source(DataConfig(path=str(folder)))


BANNER = "%%MatrixMarket matrix coordinate integer general\n"


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("matrix.mtx", lambda text: "", "does not begin with '%%MatrixMarket matrix coordinate integer general'"),
        ("matrix.mtx", lambda text: text.replace("coordinate", "array", 1), "does not begin with"),
        ("matrix.mtx", lambda text: text.replace("general", "symmetric", 1), "does not begin with"),
        ("matrix.mtx", lambda text: text[: len(text) // 2], "is damaged or truncated: it should hold"),
        ("matrix.mtx", lambda text: text + "1 1 1\n", "it is damaged or truncated"),
        ("matrix.mtx", lambda text: BANNER + "%\n%x\n12 40 1\n1 1 5x\n", "line 5 holds something that is not a number"),
        ("matrix.mtx", lambda text: BANNER + "12 40 1\n1 1 nan\n", "line 3 holds something that is not a number"),
        ("matrix.mtx", lambda text: BANNER + "12 40 1\n1 1 1e999\n", "too large"),
        ("matrix.mtx", lambda text: BANNER + "12 40 1\n13 1 1\n", "Line 3: Row index out of bounds"),
        ("matrix.mtx", lambda text: BANNER + "12 39 1\n1 1 1\n", "lists 12 features and barcodes.tsv 40 barcodes"),
        ("matrix.mtx", lambda text: BANNER + "40 12 1\n1 1 1\n", "transpose it: 10x writes a row per feature"),
        (
            "barcodes.tsv",
            lambda text: text + "AAAA-1\n",
            "41 barcodes; give three files of one experiment",
        ),
        ("barcodes.tsv", lambda text: "\n" + text, "barcodes.tsv, line 1 has no name"),
        ("features.tsv", lambda text: text.replace("\tnan\t", "\t", 1), "line 2 has 2 columns, but line 1 has 3"),
        ("features.tsv", lambda text: text.replace("Gene Expression", "Antibody Capture"), "no features of type Gene"),
    ],
)
def test_a_damaged_mtx_folder_is_refused(plain, tmp_path, name, change, sentence):
    folder = write_mtx(tmp_path / "mtx", plain)
    (folder / name).write_text(change((folder / name).read_text()))
    assert sentence in refusal(folder)


def test_fractions_under_an_integer_banner_are_not_cut_off(plain, tmp_path):
    folder = write_mtx(tmp_path / "mtx", plain)
    (folder / "matrix.mtx").write_text(BANNER + "12 40 1\n1 1 5.5\n")
    with pytest.raises(DataError, match=r"it has 5\.5 for gene NA"):
        load_cells(DataConfig(path=str(folder)))


def test_a_folder_without_a_matrix_is_refused_with_advice(plain, tmp_path):
    run = tmp_path / "outs"
    run.mkdir()
    assert "is a folder without matrix.mtx (or .gz); give a 10x folder" in refusal(run)
    inside = write_mtx(run / "filtered", plain)
    assert refusal(run).endswith(f"did you mean {inside}?")
    (inside / "matrix.mtx").rename(inside / "GSM1_matrix.mtx")
    assert "rename GSM1_matrix.mtx to matrix.mtx" in refusal(inside)
    (inside / "GSM1_matrix.mtx").rename(inside / "matrix.mtx")
    (inside / "genes.tsv").write_text("")
    assert "holds both features.tsv and genes.tsv; remove one of them" in refusal(inside)


def test_several_genomes_in_one_file_are_refused(plain, tmp_path):
    path = write_tenx(tmp_path / "cells.h5", plain, genomes=("GRCh38", "mm10"), legacy=True)
    assert "holds the matrices of 2 genomes (GRCh38, mm10)" in refusal(path)


def test_h5_files_of_other_formats_are_refused(plain, write, tmp_path):
    path = Path(write(plain)).rename(tmp_path / "cells.h5")
    assert "is an AnnData file, not a 10x file; rename it so that it ends in .h5ad" in refusal(path)
    with h5py.File(path, "w") as file:
        file["molecules"] = [1, 2]
    assert "holds no 10x matrix (it holds 'molecules')" in refusal(path)


@pytest.mark.parametrize("kept", [0, 100, 3000])
def test_a_truncated_h5_is_refused(plain, tmp_path, kept):
    path = write_tenx(tmp_path / "cells.h5", plain)
    path.write_bytes(path.read_bytes()[:kept])
    assert ("cannot be read as a 10x .h5 file" if kept else "is empty; copy or write it again.") in refusal(path)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("indices", lambda values: values + 7),
        ("indices", lambda values: values - 7),
        ("indptr", lambda values: values[::-1]),
        ("barcodes", lambda values: values[1:]),
        ("shape", lambda values: values[::-1]),
        ("features/name", lambda values: values[1:]),
    ],
)
def test_a_damaged_h5_is_refused(plain, tmp_path, field, change):
    path = write_tenx(tmp_path / "cells.h5", plain, types=["Antibody Capture", *["Gene Expression"] * 11])
    with h5py.File(path, "a") as file:
        values = file["matrix"][field][:]
        del file["matrix"][field]
        file["matrix"][field] = change(values)
    assert "cannot be read as a 10x .h5 file" in refusal(path)


@pytest.mark.parametrize(
    ("part", "told"), [("tables", 'a SpatialData, .*tables."table"'), ("mod", 'a MuData, .*mod."rna"')]
)
def test_a_zarr_folder_of_which_anndata_are_parts(part, told, tmp_path):
    zarr.open_group(tmp_path / "cells.zarr", mode="w").create_group(part)
    assert re.search(rf"cells.zarr holds {told}.* by itself: .write_h5ad", refusal(tmp_path / "cells.zarr"))


@pytest.mark.parametrize("dense", [False, True])
def test_a_zarr_folder_that_lost_a_chunk(plain, tmp_path, dense):
    """Zarr itself reads a missing chunk as zeros."""
    plain.X = plain.X.toarray() if dense else plain.X
    path = write_zarr(tmp_path, plain)
    place = path / "X" if dense else path / "X" / "data"
    chunks = [each for each in place.rglob("*") if each.is_file() and not each.name.startswith((".z", "zarr"))]
    chunks[0].unlink()
    assert "which would be read as zeros" in refusal(path)


@pytest.mark.parametrize("nullable", [False, True])  # anndata 0.13 writes texts as groups of values and a mask
def test_a_zarr_folder_that_lost_names_or_labels(plain, tmp_path, nullable):
    """A missing chunk of codes would give every cell the first label; zarr itself leaves out chunks of zeros."""
    if nullable:
        plain.obs_names, plain.var_names = (names.astype("string") for names in (plain.obs_names, plain.var_names))
    plain.obs["one"] = pd.Categorical(["a"] * plain.n_obs)
    plain.obs["two"] = pd.Categorical(["a", "b"] * (plain.n_obs // 2) + ["a"] * (plain.n_obs % 2))
    with anndata_settings.override(allow_write_nullable_strings=nullable):
        path = write_zarr(tmp_path, plain)
    open_source(DataConfig(path=str(path)))
    for place in ("obs/two/codes", "obs/two/categories", "var/_index"):
        kept = tmp_path / "kept.zarr"
        shutil.copytree(path, kept)
        for chunk in (kept / place).rglob("*"):
            if chunk.is_file() and not chunk.name.startswith((".z", "zarr")):
                chunk.unlink()
        assert f"lacks 1 of the 1 chunks of {place}, so that names or labels are lost" in refusal(kept)
        shutil.rmtree(kept)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_zarr_folder_whose_chunk_claims_more_texts_than_it_has_place_for(plain, tmp_path, zarr_format):
    """Its decoder would make room for all of them first: 17 GB here."""
    plain.obs["two"] = pd.Categorical(["a", "b"] * (plain.n_obs // 2))
    with anndata_settings.override(zarr_write_format=zarr_format):
        path = write_zarr(tmp_path, plain)
    open_source(DataConfig(path=str(path)))
    for place in ("obs/two/categories", "var/_index"):
        shutil.copytree(path, damaged := tmp_path / "damaged.zarr")
        array = zarr.open_group(damaged)[place]
        (codec,) = array.compressors
        name = codec.codec_id if zarr_format == 2 else codec.to_dict()["name"]
        codec = numcodecs.get_codec({"id": name})
        (chunk,) = (each for each in (damaged / place).rglob("*") if each.name == "0")
        content = bytearray(codec.decode(chunk.read_bytes()))
        content[3] ^= 0x80
        chunk.write_bytes(codec.encode(bytes(content)))
        assert f"has a damaged chunk of {place}: it has place for {array.size} texts, and" in refusal(damaged)
        shutil.rmtree(damaged)


def test_folders_and_files_that_are_not_zarr_are_refused(plain, tmp_path):
    (tmp_path / "empty.zarr").mkdir()
    assert "cannot be read as an AnnData .zarr folder" in refusal(tmp_path / "empty.zarr")
    (tmp_path / "file.zarr").write_text("x")
    assert "cannot be read as an AnnData .zarr folder" in refusal(tmp_path / "file.zarr")
    path = write_zarr(tmp_path, plain)
    shutil.rmtree(path / "obs")  # a store with its metadata in one place still lists the arrays
    sentence = refusal(path)
    assert "cannot be read as an AnnData .zarr folder" in sentence or "chunks of obs/" in sentence


@pytest.mark.parametrize("name", ["10x", "mtx", "zarr", "csv"])
@pytest.mark.parametrize("problem", [MemoryError("no memory left"), PermissionError(13, "Permission denied", "x")])
def test_what_the_machine_refuses_is_not_reported_as_damage(plain, tmp_path, monkeypatch, name, problem):
    def refuse(*arguments, **options):
        raise problem

    path = (WRITERS | {"zarr": write_zarr})[name](tmp_path, plain)
    orientation = "cells_by_genes" if name == "csv" else None
    place = {
        "10x": "h5py.Dataset.__getitem__",
        "mtx": "grn.cells.readers.tenx.mmread",
        "zarr": "anndata.read_zarr",
        "csv": "numpy.fromiter",
    }[name]
    monkeypatch.setattr(place, refuse)
    with pytest.raises(type(problem)):
        open_source(DataConfig(path=str(path), orientation=orientation))
