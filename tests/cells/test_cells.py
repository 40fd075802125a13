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


def test_copies_of_cells_are_told_and_stay_in_one_part_and_one_group(adata, write):
    """Three copies of each cell would make q-values too small; half a percent of equal cells is
    chance.
    """
    generator = np.random.default_rng(0)
    once = generator.poisson(2.0, (60, 40)).astype(np.float32)
    plain = AnnData(
        once, obs=pd.DataFrame({"label": ["a", "b"] * 30}, index=[f"c{i}" for i in range(60)])
    )
    cells, _ = load_cells(DataConfig(path=write(plain), label_key="label"))
    assert cells.groups is None and "copies" not in " ".join(cells.notes)
    thrice = anndata.concat([plain] * 3, index_unique="-")
    cells, split = load_cells(DataConfig(path=write(thrice), label_key="label"))
    assert "180 of 180 cells are exact copies of another cell" in " ".join(cells.notes)
    owners = [set(part % 60) for part in (split.train, split.test)]
    assert sum(map(len, owners)) == len(set.union(*owners)) == 60
    np.testing.assert_array_equal(cells.groups, np.tile(cells.groups[:60], 3))
    assert len(set(cells.groups)) == 60 and cells.only_copies


def test_donors_that_share_a_cell_with_cells_without_one_are_no_donors(write):
    """Copies join groups: three donors, of which the last has all cells that have none."""
    once = np.random.default_rng(0).poisson(2.0, (60, 40)).astype(np.float32)
    donor = np.repeat(["d1", "d2", "d3"], 20)
    obs = pd.DataFrame(
        {"donor": np.concatenate([donor, np.repeat([None], 20)])},
        index=[f"c{i}" for i in range(80)],
    )
    path = write(AnnData(np.concatenate([once, once[40:]]), obs=obs))
    cells, _ = load_cells(DataConfig(path=path, group_key="donor"))
    assert not cells.only_copies and (cells.groups[40:] == -1).all()
    assert len(set(cells.groups[:20])) == len(set(cells.groups[20:40])) == 1
    assert len(set(cells.groups)) == 3


def test_what_training_does_not_need_is_not_read(adata, write):
    """uns and obsm may be huge or damaged;
    the planted edges in uns are read where they are whole.
    """
    adata.uns["huge"], adata.obsm["X_pca"] = np.zeros(1000), np.ones((adata.n_obs, 2))
    adata.uns["truth"] = pd.DataFrame({"source": ["gene1"], "target": ["gene2"], "sign": [1]})
    expected, _ = load_cells(DataConfig(path=write(adata)))
    assert expected.truth["source"].tolist() == ["gene1"]
    path = Path(write(adata))
    adata.write_zarr(path.with_suffix(".zarr"))
    with h5py.File(path, "r+") as file:
        for part in ("uns/huge", "uns/truth", "obsm/X_pca"):
            file[part].attrs["encoding-type"] = "of another program"
    for chunk in [
        *(path.with_suffix(".zarr") / "uns").rglob("*"),
        *(path.with_suffix(".zarr") / "obsm").rglob("*"),
    ]:
        if chunk.is_file() and not chunk.name.startswith((".z", "zarr")):
            chunk.write_bytes(b"damaged")
    for damaged in (path, path.with_suffix(".zarr")):
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
def test_columns_that_cannot_be_used_name_their_field(adata, write, fields, field):
    """That do not exist, hold nothing, a value for each cell, or the same number (in single
    precision) in all.
    """
    adata.obs["blank"], adata.obs["number"], adata.obs["one"] = np.nan, np.arange(adata.n_obs), 1.0
    adata.obs["same"] = "treated"
    adata.obs["large"] = np.arange(adata.n_obs) + 2**62
    with pytest.raises(DataError) as caught:
        load_cells(DataConfig(path=write(adata), **fields))
    assert caught.value.field == field


def test_groups_stay_together_and_a_missing_group_is_one(adata, write):
    donors = np.array(["d1", "d2", "d3", "d4", None], object)[np.arange(adata.n_obs) % 5]
    adata.obs["donor"] = pd.Categorical(donors)
    cells, split = load_cells(DataConfig(path=write(adata), group_key="donor"))
    owners = [set(pd.Series(donors[part]).fillna("none")) for part in (split.train, split.test)]
    assert sum(map(len, owners)) == len(set.union(*owners)) == 5
    assert len(set(zip(cells.groups, map(str, donors), strict=True))) == len(set(cells.groups)) == 5
    assert load_cells(DataConfig(path=write(adata)))[0].groups is None


def test_donors_are_counted_and_named(adata, write):
    donors = np.array(["d2", "d1", "d1", None, " "], object)[np.arange(adata.n_obs) % 5]
    adata.obs["donor"] = pd.Categorical(donors)
    cells, _ = load_cells(DataConfig(path=write(adata), group_key="donor"))
    each = adata.n_obs // 5
    assert cells.donors == ("d1", "d2")
    assert any(f"d1 ({2 * each} cells), d2 ({each} cells)" in note for note in cells.notes)
    assert load_cells(DataConfig(path=write(adata)))[0].donors == ()


def test_a_state_is_read_with_nan(adata, write):
    adata.obs["age"] = np.r_[np.nan, np.inf, np.arange(38)]
    path = write(adata)
    cells, _ = load_cells(DataConfig(path=path, state_key="age"))
    assert cells.state_name == "age" and cells.state.dtype == np.float32
    assert np.isnan(cells.state[:2]).all() and cells.state[2:].tolist() == [*range(38)]
    assert load_cells(DataConfig(path=path))[0].state is None


def test_a_column_that_seems_to_hold_conditions_is_named_until_it_is_used(adata, write):
    adata.obs["Treatment"] = np.array(["treated", "control"])[np.arange(adata.n_obs) % 2]
    path = write(adata)
    for fields in ({}, {"state_key": "Treatment"}, {"label_key": "Treatment"}):
        cells, _ = load_cells(DataConfig(path=path, **fields))
        assert bool(cells.hint) == (not fields)
    adata.obs["Treatment"] = np.arange(adata.n_obs).astype(str)
    assert not load_cells(DataConfig(path=write(adata)))[0].hint


def test_texts_of_the_state_are_conditions(adata, write):
    treated = np.array(["treated", "control", None, ""], object)[np.arange(adata.n_obs) % 4]
    adata.obs["treated"] = pd.Categorical(treated)
    cells, _ = load_cells(DataConfig(path=write(adata), state_key="treated"))
    assert cells.conditions == ("control", "treated") and cells.state_name == "treated"
    assert cells.state[:2].tolist() == [1, 0] and np.isnan(cells.state[2:4]).all()


def test_what_is_fitted_is_fitted_on_training_cells_alone(adata, write):
    config = DataConfig(path=write(adata), genes=5)
    cells, split = load_cells(config, seed=4)
    training = adata.X[split.train]
    chosen = choose_genes(training, list(adata.var_names), 5, None, "counts")
    assert cells.vocabulary == tuple(adata.var_names[chosen])
    totals = np.asarray(training[:, chosen].sum(axis=1)).ravel()
    assert cells.target_total == np.median(totals[totals > 0])
    # Other counts outside the training cells change nothing that was fitted.
    counts = adata.X.toarray()
    counts[split.test] = 500 * np.eye(adata.n_vars)[split.test % 12]
    adata.X = counts
    again, _ = load_cells(DataConfig(path=write(adata), genes=5), seed=4)
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


def test_new_cells_are_judged_as_those_of_the_training_were(adata, write):
    """Log values are refused, counts times ten and cells far deeper than the training cells are
    told.
    """
    raw = np.random.default_rng(0).poisson(2.0, (40, 60)).astype(np.float32)
    adata = AnnData(raw, var=pd.DataFrame(index=[f"gene{i}" for i in range(60)]))
    config = DataConfig(path=write(adata), genes="all")
    cells, _ = load_cells(config)
    model = {
        "target_total": cells.target_total,
        "depth": cells.depth,
        "measures_depth": cells.measures_depth,
    }
    for rows in (None, 16):
        new = cells_in_pieces(adata, config, cells.vocabulary, rows=rows, **model)
        assert len(new.notes) == 1
        adata.X = raw * 10
        notes = cells_in_pieces(adata, config, cells.vocabulary, rows=rows, **model).notes
        assert "multiples of its smallest one" in notes[1] and "in training" in notes[2]
        adata.X = np.log1p(raw)
        with pytest.raises(DataError, match="is not a whole number"):
            cells_in_pieces(adata, config, cells.vocabulary, rows=rows, **model)
        adata.X = raw


def test_too_few_genes_are_a_mismatch_and_the_fitting_column_is_named(adata):
    with pytest.raises(VocabularyMismatch, match="shares 1 of 3 genes"):
        next(cells_in_pieces(adata, DataConfig(path="x"), ["gene1", "SPI1", "CD3E"]).pieces())
    adata.raw = adata.copy()
    some = adata[:, :2].copy()
    with pytest.raises(VocabularyMismatch, match=r"missing among its 2 .*set data\.counts to raw"):
        next(cells_in_pieces(some, DataConfig(path="x"), list(adata.var_names)).pieces())
    del some.raw
    with pytest.raises(VocabularyMismatch, match="look like a choice"):
        next(cells_in_pieces(some, DataConfig(path="x"), list(adata.var_names)).pieces())
    del adata.raw
    adata.var["symbol"] = names = list(adata.var_names)
    adata.var_names = [f"ENSG{number:011d}" for number in range(adata.n_vars)]
    with pytest.raises(VocabularyMismatch, match=r"Ensembl ids, .*data\.gene_key to symbol"):
        next(cells_in_pieces(adata, DataConfig(path="x"), names).pieces())


def test_var_names_are_kept_beside_symbols(adata, write):
    symbols = [f"s{number}" for number in range(adata.n_vars)]
    symbols[3] = symbols[1]  # of a gene with two columns, the first one's name
    adata.var["symbol"] = symbols
    cells, _ = load_cells(
        DataConfig(path=write(adata), genes="all", gene_key="symbol", duplicates="sum")
    )
    expected = {
        symbol: str(name)
        for symbol, name in reversed(list(zip(symbols, adata.var_names, strict=True)))
    }
    assert dict(zip(cells.vocabulary, cells.var_names, strict=True)) == {
        gene: expected[gene] for gene in cells.vocabulary
    }
    assert load_cells(DataConfig(path=write(adata), genes="all"))[0].var_names is None
