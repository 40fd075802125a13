"""The same cells in every format are read as the same cells; a damaged or ambiguous file is refused
in one sentence.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from anndata import settings as anndata_settings
from scipy import sparse

from grn.cells.load import cells_in_pieces, load_cells
from grn.cells.readers.registry import is_data_file, open_source
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError, UserError

# All of them genes; other readers take some for missing values, numbers or comments.
NAMES = ["NA", "nan", "null", "TRUE", "1E5", "MARCH1", "a b", "HLA-A", "None", "g'x", "inf", "#g"]


@pytest.fixture
def plain(cells) -> AnnData:
    cells.var_names = NAMES
    return cells


def write_csv(path: Path, adata: AnnData, *, orientation="cells_by_genes", **options) -> Path:
    frame = adata.to_df()
    (frame if orientation == "cells_by_genes" else frame.T).to_csv(path, **options)
    return path


def write_anndata(path: Path, adata: AnnData) -> Path:
    (adata.write_zarr if path.suffix == ".zarr" else adata.write_h5ad)(path)
    return path


def assert_same(found: AnnData, expected: AnnData) -> None:
    assert list(found.obs_names) == list(expected.obs_names)
    assert list(found.var_names) == list(expected.var_names)
    assert all(type(name) is str for name in found.var_names)
    np.testing.assert_array_equal(
        sparse.csr_matrix(found.X).toarray(), sparse.csr_matrix(expected.X).toarray()
    )


FORMATS = (
    *("zarr", "h5ad", "10x", "10x before version 3", "mtx", "mtx.gz", "mtx before version 3"),
    *("csv", "csv.gz", "tsv", "txt of R"),
)


@pytest.fixture
def write_as(tmp_path, write_mtx, write_tenx):
    """Writes cells in a format; returns the path."""

    def write(name: str, adata: AnnData, **options) -> Path:
        legacy = {"legacy": True} if "before" in name else {}
        kind, path = name.split()[0], tmp_path / f"cells.{name.split()[0]}"
        if kind == "10x":
            genomes = ("GRCh38",) if legacy else ("matrix",)
            return write_tenx(tmp_path / "cells.h5", adata, genomes=genomes, **legacy, **options)
        if kind.startswith("mtx"):
            packed = kind.endswith("gz")
            return write_mtx(tmp_path / "mtx", adata, packed=packed, **legacy, **options)
        if kind in ("zarr", "h5ad"):
            return write_anndata(path, adata)
        separator = {"csv": ",", "csv.gz": ";", "tsv": "\t", "txt": " "}[kind]
        return write_csv(path, adata, sep=separator, quoting=2 if kind == "txt" else 0)

    return write


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_cells_of_h5ad(plain, write, write_as, name):
    expected = DataConfig(path=write(plain, "expected.h5ad"), regulators=["NA", "nan"], genes=8)
    path = write_as(name, plain)
    text = "cells_by_genes" if name.startswith(("csv", "tsv", "txt")) else None
    config = expected.model_copy(update={"path": str(path), "orientation": text})
    assert is_data_file(str(path))
    assert_same(open_source(config), plain)
    (found, split), (cells, expected_split) = load_cells(config), load_cells(expected)
    assert found.vocabulary == cells.vocabulary and found.notes == cells.notes
    np.testing.assert_array_equal(found.multiplicity.toarray(), cells.multiplicity.toarray())
    np.testing.assert_array_equal(found.regulators, cells.regulators)
    np.testing.assert_array_equal(found.obs_names, cells.obs_names)
    np.testing.assert_array_equal(split.train, expected_split.train)


@pytest.mark.parametrize(
    ("text", "cells", "genes"),
    [
        ('"g1" "g2"\n"c1" 1 0\n"c2" 0 2.5\n', ["c1", "c2"], ["g1", "g2"]),
        (",7157,672\n0,1,0\n1,0,2.5\n", ["0", "1"], ["7157", "672"]),
    ],
)
def test_a_header_may_lack_the_corner_and_names_may_be_numbers(tmp_path, text, cells, genes):
    (tmp_path / "r.txt").write_text(text)
    found = open_source(DataConfig(path=str(tmp_path / "r.txt"), orientation="cells_by_genes"))
    assert (list(found.obs_names), list(found.var_names)) == (cells, genes)
    np.testing.assert_array_equal(found.X.toarray(), [[1, 0], [0, 2.5]])


def test_text_keeps_every_digit(tmp_path):
    """Fractions as an .h5ad of float64 holds them, not as the nearest float32."""
    values = np.array([[0.1, 1 / 3], [2**24 + 1, 1e-30]])
    path = write_csv(tmp_path / "cells.csv", AnnData(values))
    found = open_source(DataConfig(path=str(path), orientation="cells_by_genes"))
    np.testing.assert_array_equal(found.X.toarray(), values)


@pytest.mark.parametrize("name", ["h5ad", "10x", "mtx"])
@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csc_matrix])
def test_entries_that_are_stored_twice_are_summed(write_as, name, form):
    """As every reader does it: 1 and 2 counts of a gene, stored apart."""
    twice = form(
        (np.array([1.0, 2, 5, 4]), np.array([1, 1, 0, 1]), np.array([0, 3, 4])), shape=(2, 2)
    )
    adata = AnnData(twice, var=pd.DataFrame({"gene_ids": ["i1", "i2"]}, index=["g1", "g2"]))
    config = DataConfig(path=str(write_as(name, adata)), multiplicity="counts", genes="all")
    found = next(cells_in_pieces(open_source(config), config, ["g1", "g2"]).pieces()).multiplicity
    expected = np.array([[5, 3], [0, 4]])
    np.testing.assert_array_equal(
        found.toarray(), expected if form is sparse.csr_matrix else expected.T
    )


@pytest.mark.parametrize("name", ["10x", "mtx", "csv", "h5ad", "zarr"])
def test_genes_of_one_name_are_left_to_data_duplicates(plain, write_as, recwarn, name):
    plain.var_names = ["TWICE", "TWICE", *NAMES[2:]]
    path, orientation = write_as(name, plain), "cells_by_genes" if name == "csv" else None
    config = DataConfig(path=str(path), orientation=orientation, genes="all")
    with pytest.raises(DataError, match=r"'TWICE'.*set data\.duplicates to sum"):
        load_cells(config)
    cells, _ = load_cells(config.model_copy(update={"duplicates": "sum", "multiplicity": "counts"}))
    assert cells.vocabulary == ("TWICE", *NAMES[2:])
    np.testing.assert_array_equal(
        cells.multiplicity.toarray()[:, 0], plain.X.toarray()[:, :2].sum(1)
    )
    assert not [each for each in recwarn if "not unique" in str(each.message)]
    if name != "csv":
        by_id, _ = load_cells(config.model_copy(update={"gene_key": "gene_ids"}))
        assert by_id.vocabulary == tuple(plain.var["gene_ids"])


@pytest.mark.parametrize("name", ["10x", "mtx"])
def test_features_that_are_not_genes_are_left_out_with_a_note(plain, write_as, name):
    others = ("Antibody Capture", "CRISPR Guide Capture")
    types = [others[0], *["Gene Expression"] * 9, *others]
    config = DataConfig(path=str(write_as(name, plain, types=types)), genes="all")
    assert_same(open_source(config), plain[:, 1:10])
    cells, _ = load_cells(config)
    assert "are left out (Antibody Capture: 2, CRISPR Guide Capture: 1)" in cells.notes[0]


def refusal(path: Path, **fields) -> UserError:
    with pytest.raises(UserError) as caught:
        open_source(DataConfig(path=str(path), **fields))
    assert "\n" not in str(caught.value) and path.name in str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", ["10x", "mtx", "zarr", "csv"])
def test_text_files_need_an_orientation_and_others_take_none(plain, write_as, name):
    orientation = None if name == "csv" else "cells_by_genes"
    assert refusal(write_as(name, plain), orientation=orientation).field == "data.orientation"


@pytest.mark.parametrize("right", ["cells_by_genes", "genes_by_cells"])
@pytest.mark.parametrize("evidence", ["barcodes", "regulators", "genes", "ids"])
def test_names_that_contradict_the_orientation_are_refused(plain, tmp_path, right, evidence):
    (tmp_path / "genes.txt").write_text("NA\nnull\n")
    fields = {
        "regulators": {"regulators": ["NA", "null", "absent"]},
        "genes": {"genes": str(tmp_path / "genes.txt")},
    }.get(evidence, {})
    if evidence != "barcodes":
        plain.obs_names = [f"cell {place}" for place in range(plain.n_obs)]
    if evidence == "ids":
        plain.var_names = plain.var["gene_ids"].to_numpy()
    path = write_csv(tmp_path / "cells.csv", plain, orientation=right)
    (wrong,) = {"cells_by_genes", "genes_by_cells"} - {right}
    error = refusal(path, orientation=wrong, **fields)
    assert error.field == "data.orientation" and right in error.advice
    assert_same(open_source(DataConfig(path=str(path), orientation=right, **fields)), plain)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",g1,g2\n",
        ",g1,g2\nc1,1,x\n",
        ",g1,g2\nc1,1,2\n\nc2,,2\n",
        *(f",g1,g2\nc1,1,{value}\n" for value in ("NA", "nan", "inf", "1e39", "TRUE", "1_0")),
        '\tg1\tg2\nc1\t1\t"1,5"\n',
        ";g1;g2\nc1;1,5;2\n",
        ";g1;g2\nc1;1,234;2\n",
        ",g1,g2\nc1,1,2\nc2,1\n",
        ",g1,g2,\nc1,1,2,\nc2,1,2,3\n",
        ",gène\nc1,1\n",
        ",g1,g2\nc1,1,2\nc1,1,2\n",
        "c0,0,3,0\nc1,1,0,2\n",
        "g1,g2,g3\n0,3,1\n0,2,1\n",
    ],
)
def test_text_that_is_not_a_matrix_is_refused(tmp_path, text):
    (tmp_path / "cells.csv").write_text(text, encoding="latin-1")
    refusal(tmp_path / "cells.csv", orientation="cells_by_genes")


@pytest.mark.parametrize("kept", [5, 60, -4])
def test_a_truncated_gz_is_refused(plain, tmp_path, kept):
    path = write_csv(tmp_path / "cells.csv.gz", plain)
    path.write_bytes(path.read_bytes()[:kept])
    refusal(path, orientation="cells_by_genes")


BANNER = "%%MatrixMarket matrix coordinate integer general\n"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("matrix.mtx", lambda text: text[: len(text) // 2]),
        ("matrix.mtx", lambda text: BANNER + "12 40 1\n1 1 nan\n"),
        ("barcodes.tsv", lambda text: text + "AAAA-1\n"),
        ("features.tsv", lambda text: text.replace("\tnan\t", "\t", 1)),
        ("features.tsv", lambda text: text.replace("Gene Expression", "Antibody Capture")),
    ],
)
def test_a_damaged_mtx_folder_is_refused(plain, write_as, name, change):
    folder = write_as("mtx", plain)
    (folder / name).write_text(change((folder / name).read_text()))
    refusal(folder)
    (folder / "matrix.mtx").write_text(BANNER + "12 40 1\n1 1 5.5\n")
    if name == "matrix.mtx":  # a fraction under a banner of integers is not cut off
        with pytest.raises(DataError, match=r"5\.5 for gene NA"):
            load_cells(DataConfig(path=str(folder)))


# anndata 0.13 writes texts as groups of values and a mask
@pytest.mark.parametrize("nullable", [False, True])
def test_a_zarr_folder_that_lost_names_labels_or_values(plain, tmp_path, nullable):
    """Zarr itself reads missing chunks as zeros, which would give every cell the first label."""
    if nullable:
        plain.obs_names, plain.var_names = (
            names.astype("string") for names in (plain.obs_names, plain.var_names)
        )
    plain.obs["one"] = pd.Categorical(["a"] * plain.n_obs)
    plain.obs["two"] = pd.Categorical(["a", "b"] * (plain.n_obs // 2) + ["a"] * (plain.n_obs % 2))
    with anndata_settings.override(allow_write_nullable_strings=nullable):
        path = write_anndata(tmp_path / "cells.zarr", plain)
    open_source(DataConfig(path=str(path)))
    for place in ("obs/two/codes", "obs/two/categories", "var/_index", "X/data"):
        kept = tmp_path / "kept.zarr"
        shutil.copytree(path, kept)
        for chunk in (kept / place).rglob("*"):
            if chunk.is_file() and not chunk.name.startswith((".z", "zarr")):
                chunk.unlink()
        assert f"lacks 1 of the 1 chunks of {place}" in refusal(kept).problem
        with pytest.raises(DataError, match="lacks 1 of the"):
            load_cells(DataConfig(path=str(kept)))
        shutil.rmtree(kept)
    shutil.rmtree(path / "obs")  # a store with its metadata in one place still lists the arrays
    refusal(path)
