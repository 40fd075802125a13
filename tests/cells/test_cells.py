"""From a file to cells, and other data for a trained model."""

from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData

from grn.cells.genes.names import choose_genes
from grn.cells.load import cells_in_pieces, load_cells
from grn.cells.obs import read_labels
from grn.cells.readers.registry import open_source
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError, VocabularyMismatch


@pytest.mark.parametrize(
    ("column", "classes", "labels"),
    [
        (
            ["B/T", None, "", "nan", np.nan, "NA", "  "],
            ("B/T", "NA", "nan"),
            [0, -1, -1, 2, -1, 1, -1],
        ),
        (pd.Categorical(["x", None, "x"], categories=["unused", "x"]), ("x",), [0, -1, 0]),
        ([2, 10, 2], ("10", "2"), [1, 0, 1]),
        ([True, False, True], ("False", "True"), [1, 0, 1]),
        (pd.array(["x", None, "y"], dtype="string"), ("x", "y"), [0, -1, 1]),
    ],
)
def test_labels_of_any_type_and_only_nan_none_and_empty_ones_are_missing(column, classes, labels):
    found, names = read_labels(pd.DataFrame({"label": column}), "label")
    assert (names, found.tolist()) == (classes, labels)


def test_copies_of_cells_are_told_and_stay_in_one_part_and_one_group(load):
    """Three copies of each cell would make q-values too small."""
    once = np.random.default_rng(0).poisson(2.0, (60, 40)).astype(np.float32)
    names = [f"c{number}" for number in range(60)]
    plain = AnnData(once, obs=pd.DataFrame({"label": ["a", "b"] * 30}, index=names))
    cells, _ = load(plain, label_key="label")
    assert cells.groups is None and "copies" not in " ".join(cells.notes)
    thrice = anndata.concat([plain] * 3, index_unique="-")
    cells, split = load(thrice, label_key="label")
    assert "180 of 180 cells are exact copies of another cell" in " ".join(cells.notes)
    owners = [set(part % 60) for part in (split.train, split.test)]
    assert sum(map(len, owners)) == len(set.union(*owners)) == 60
    np.testing.assert_array_equal(cells.groups, np.tile(cells.groups[:60], 3))
    assert len(set(cells.groups)) == 60 and cells.only_copies


def test_donors_that_share_a_cell_with_cells_without_one_are_no_donors(load):
    """Copies join groups: three donors, of which the last has all cells that have none."""
    once = np.random.default_rng(0).poisson(2.0, (60, 40)).astype(np.float32)
    adata = AnnData(np.concatenate([once, once[40:]]))
    adata.obs["donor"] = np.repeat(["d1", "d2", "d3", None], 20)
    cells, _ = load(adata, group_key="donor")
    assert not cells.only_copies and (cells.groups[40:] == -1).all()
    assert len(set(cells.groups[:20])) == len(set(cells.groups[20:40])) == 1
    assert len(set(cells.groups)) == 3


def test_what_training_does_not_need_is_not_read(adata, write):
    """uns and obsm may be huge or damaged; planted edges in uns are read where they are whole."""
    adata.uns["huge"], adata.obsm["X_pca"] = np.zeros(1000), np.ones((adata.n_obs, 2))
    adata.uns["truth"] = pd.DataFrame({"source": ["gene1"], "target": ["gene2"], "sign": [1]})
    path = Path(write(adata))
    folder = path.with_suffix(".zarr")
    adata.write_zarr(folder)
    expected, _ = load_cells(DataConfig(path=str(path)))
    assert expected.truth["source"].tolist() == ["gene1"]
    with h5py.File(path, "r+") as file:
        for part in ("uns/huge", "uns/truth", "obsm/X_pca"):
            file[part].attrs["encoding-type"] = "of another program"
    for chunk in [*(folder / "uns").rglob("*"), *(folder / "obsm").rglob("*")]:
        if chunk.is_file() and not chunk.name.startswith((".z", "zarr")):
            chunk.write_bytes(b"damaged")
    for damaged in (path, folder):
        found, _ = load_cells(DataConfig(path=str(damaged)))
        assert found.truth is None and found.digest == expected.digest
        with pytest.raises(DataError):
            open_source(DataConfig(path=str(damaged)))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"label_key": "lable"}, "data.label_key"),
        ({"group_key": "blank"}, "data.group_key"),
        ({"group_key": "number"}, "data.group_key"),
        ({"state_key": "same"}, "data.state_key"),
        ({"state_key": "one"}, "data.state_key"),
        ({"state_key": "large"}, "data.state_key"),
    ],
)
def test_columns_that_cannot_be_used_name_their_field(adata, load, fields, field):
    """That do not exist, hold nothing, a value for each cell, or the same number (in single
    precision) in all.
    """
    adata.obs["blank"], adata.obs["number"], adata.obs["one"] = np.nan, np.arange(adata.n_obs), 1.0
    adata.obs["same"] = "treated"
    adata.obs["large"] = np.arange(adata.n_obs) + 2**62
    with pytest.raises(DataError) as caught:
        load(adata, **fields)
    assert caught.value.field == field


def test_donors_stay_together_and_are_named_and_cells_without_one_are_a_group(adata, load):
    donors = np.array(["d2", "d1", "d1", None, " "], object)[np.arange(adata.n_obs) % 5]
    adata.obs["donor"] = pd.Categorical(donors)
    cells, split = load(adata, group_key="donor")
    owners = [set(cells.groups[part]) for part in (split.train, split.test)]
    assert sum(map(len, owners)) == len(set.union(*owners)) == 3
    known = pd.Series(donors).replace(" ", None).fillna("none")
    assert len(set(zip(cells.groups, known, strict=True))) == 3
    assert cells.donors == ("d1", "d2")
    assert any("d1 (16 cells), d2 (8 cells)" in note for note in cells.notes)
    plain, _ = load(adata)
    assert plain.groups is None and plain.donors == ()


def test_a_state_is_read_with_nan_and_texts_of_it_are_conditions(adata, load):
    adata.obs["age"] = np.r_[np.nan, np.inf, np.arange(38)]
    treated = np.array(["treated", "control", None, ""], object)[np.arange(adata.n_obs) % 4]
    adata.obs["treated"] = pd.Categorical(treated)
    assert load(adata)[0].state is None
    cells, _ = load(adata, state_key="age")
    assert cells.state_name == "age" and cells.state.dtype == np.float32
    assert np.isnan(cells.state[:2]).all() and cells.state[2:].tolist() == [*range(38)]
    cells, _ = load(adata, state_key="treated")
    assert cells.conditions == ("control", "treated") and cells.state_name == "treated"
    assert cells.state[:2].tolist() == [1, 0] and np.isnan(cells.state[2:4]).all()


def test_a_column_that_seems_to_hold_conditions_is_named_until_it_is_used(adata, load):
    adata.obs["Treatment"] = np.array(["treated", "control"])[np.arange(adata.n_obs) % 2]
    for fields in ({}, {"state_key": "Treatment"}, {"label_key": "Treatment"}):
        assert bool(load(adata, **fields)[0].hint) == (not fields)
    adata.obs["Treatment"] = np.arange(adata.n_obs).astype(str)
    assert not load(adata)[0].hint


def test_what_is_fitted_is_fitted_on_training_cells_alone(adata, load):
    cells, split = load(adata, seed=4, genes=5)
    training = adata.X[split.train]
    chosen = choose_genes(training, list(adata.var_names), 5, None, "counts")
    assert cells.vocabulary == tuple(adata.var_names[chosen])
    totals = np.asarray(training[:, chosen].sum(axis=1)).ravel()
    assert cells.target_total == np.median(totals[totals > 0])
    # Other counts outside the training cells change nothing that was fitted.
    counts = adata.X.toarray()
    counts[split.test] = 500 * np.eye(adata.n_vars)[split.test % 12]
    adata.X = counts
    again, _ = load(adata, seed=4, genes=5)
    assert (again.vocabulary, again.target_total) == (cells.vocabulary, cells.target_total)


def test_genes_and_labels_are_placed_by_name_and_missing_ones_are_absent(adata, write):
    config = DataConfig(path=write(adata), label_key="label", genes=5)
    trained, _ = load_cells(config)
    model = {"classes": trained.classes, "target_total": trained.target_total}
    again = next(cells_in_pieces(adata, config, trained.vocabulary, **model).pieces())
    np.testing.assert_array_equal(again.multiplicity.toarray(), trained.multiplicity.toarray())
    np.testing.assert_array_equal(again.labels, trained.labels)
    vocabulary, classes = ["gene5", "gene1", "unknown", "gene0"], ["T/NK cell", "other", "B cell"]
    config = DataConfig(path="x", label_key="label", multiplicity="counts")
    cells = next(cells_in_pieces(adata[:, ::-1], config, vocabulary, classes=classes).pieces())
    expected = adata.to_df().assign(unknown=0)[vocabulary]
    np.testing.assert_array_equal(cells.multiplicity.toarray(), expected)
    assert cells.multiplicity.has_sorted_indices and "3 of the model's 4 genes" in cells.notes[0]
    assert cells.labels.tolist() == [
        {"T/NK cell": 0, "B cell": 2}.get(label, -1) for label in adata.obs["label"]
    ]


@pytest.mark.parametrize("rows", [None, 16])
def test_new_cells_are_judged_as_those_of_the_training_were(write, rows):
    """Log values are refused, counts times ten and cells far deeper than the training cells are
    told.
    """
    raw = np.random.default_rng(0).poisson(2.0, (40, 60)).astype(np.float32)
    adata = AnnData(raw, var=pd.DataFrame(index=[f"gene{i}" for i in range(60)]))
    config = DataConfig(path=write(adata), genes="all")
    cells, _ = load_cells(config)
    known = ("target_total", "depth", "measures_depth")
    model = {name: getattr(cells, name) for name in known}

    def notes(values):
        new = AnnData(values, var=adata.var)
        return cells_in_pieces(new, config, cells.vocabulary, rows=rows, **model).notes

    assert len(notes(raw)) == 1
    told = notes(raw * 10)
    assert "multiples of its smallest one" in told[1] and "in training" in told[2]
    with pytest.raises(DataError, match="is not a whole number"):
        notes(np.log1p(raw))


def test_too_few_genes_are_a_mismatch_and_the_fitting_column_is_named(adata):
    names = list(adata.var_names)

    def refused(adata, vocabulary, sentence):
        with pytest.raises(VocabularyMismatch, match=sentence):
            next(cells_in_pieces(adata, DataConfig(path="x"), vocabulary).pieces())

    refused(adata, ["gene1", "SPI1", "CD3E"], "shares 1 of 3 genes")
    some = adata[:, :2].copy()
    refused(some, names, "look like a choice")
    some.raw = adata.copy()
    refused(some, names, r"missing among its 2 .*set data\.counts to raw")
    adata.var["symbol"] = names
    adata.var_names = [f"ENSG{number:011d}" for number in range(adata.n_vars)]
    refused(adata, names, r"Ensembl ids, .*data\.gene_key to symbol")


def test_var_names_are_kept_beside_symbols(adata, load):
    """Of a gene with two columns, the first one's name."""
    assert load(adata, genes="all")[0].var_names is None
    symbols = [f"s{number}" for number in range(adata.n_vars)]
    symbols[3] = symbols[1]
    adata.var["symbol"] = symbols
    fields = {"genes": "all", "gene_key": "symbol", "duplicates": "sum"}
    cells, _ = load(adata, **fields)
    expected = dict(zip(reversed(symbols), reversed(adata.var_names), strict=True))
    assert list(cells.var_names) == [expected[gene] for gene in cells.vocabulary]
