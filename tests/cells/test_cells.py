"""From a file to cells, and other data for a trained model."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from grn.cells.genes import choose_genes
from grn.cells.load import cells_for_vocabulary, load_cells
from grn.cells.obs import read_labels
from grn.config.schema import DataConfig
from grn.errors import ConfigError, DataError, VocabularyMismatch


def test_labels_with_slashes_survive_and_are_sorted(adata, write):
    cells, split = load_cells(DataConfig(path=write(adata), label_key="label"))
    assert cells.classes == ("B cell", "CD14+ monocyte", "T/NK cell")
    assert [cells.classes[label] for label in cells.labels] == list(adata.obs["label"])
    assert set(cells.labels[split.test]) == {0, 1, 2}


def test_only_nan_none_and_empty_labels_are_missing():
    obs = pd.DataFrame({"label": ["B", None, "", "nan", np.nan, "NA", "  "]})
    labels, classes = read_labels(obs, "label")
    assert classes == ("B", "NA", "nan")
    assert labels.tolist() == [0, -1, -1, 2, -1, 1, -1]


@pytest.mark.parametrize(
    ("column", "classes", "labels"),
    [
        (pd.Categorical(["x", None, "x"], categories=["unused", "x"]), ("x",), [0, -1, 0]),
        ([2, 10, 2], ("10", "2"), [1, 0, 1]),
        ([True, False, True], ("False", "True"), [1, 0, 1]),
        (pd.array(["x", None, "y"], dtype="string"), ("x", "y"), [0, -1, 1]),
    ],
)
def test_labels_of_any_type(column, classes, labels):
    found, names = read_labels(pd.DataFrame({"label": column}), "label")
    assert names == classes
    assert found.tolist() == labels


def test_missing_labels_come_back_from_a_file(adata, write):
    adata.obs["label"] = pd.Categorical(adata.obs["label"]).set_categories(["B cell", "T/NK cell"])
    cells, split = load_cells(DataConfig(path=write(adata), label_key="label"))
    assert cells.classes == ("B cell", "T/NK cell")
    np.testing.assert_array_equal(cells.labels == -1, adata.obs["label"].isna())
    for part in (split.train, split.validation, split.test):
        assert (cells.labels[part] == -1).any(), "cells without a label are a stratum too"


def test_counts_that_were_scaled_to_one_depth_are_said_to_be_of_one(adata, write):
    raw = np.random.default_rng(0).poisson(30.0, adata.shape)
    total = raw.sum(1, keepdims=True)
    said = {}
    for name, counts in {"raw": raw, "scaled": np.round(raw / total * 1e4)}.items():
        adata.X = sparse.csr_matrix(counts.astype(np.float32))
        said[name] = " ".join(load_cells(DataConfig(path=write(adata)))[0].notes)
    assert "All cells have nearly the same total (" in said["scaled"] and "give the raw counts." in said["scaled"]
    assert "nearly the same total" not in said["raw"]


def test_counts_of_0_and_1_and_cells_named_like_sums_are_said_to_be_so(adata, write):
    def said() -> str:
        return " ".join(load_cells(DataConfig(path=write(adata)))[0].notes)

    adata.X = sparse.csr_matrix(np.random.default_rng(0).poisson(3.0, adata.shape).astype(np.float32))
    assert "No count is above 1" not in said() and "sum of others" not in said()
    adata.X = (adata.X > 0).astype(np.float32)
    adata.obs_names = [*adata.obs_names[:-1], "Total"]
    assert "No count is above 1, as in matrices that only say whether" in said()
    assert "1 cells are named like a sum of others ('Total') and count as cells; remove these rows" in said()


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        (["B", "Unknown"], "The label 'Unknown' is a text and so a cell type"),
        (["NA", "unassigned"], "The labels 'NA', 'unassigned' are texts and so cell types"),
        (["T cell", "T cell "], "The labels 'T cell' and 'T cell ' differ only in spaces, dashes or upper and lower"),
        (["T cell", "t cell"], "The labels 'T cell' and 't cell' differ only in spaces, dashes or upper and lower"),
    ],
)
def test_doubtful_labels_are_named(labels, note, adata, write):
    adata.obs["label"] = [labels[cell % 2] for cell in range(adata.n_obs)]
    cells, _ = load_cells(DataConfig(path=write(adata), label_key="label"))
    assert note in " ".join(cells.notes)


def test_the_names_of_genes_are_shown_and_doubtful_ones_named(adata, write):
    adata.var["symbol"] = [None, "total", " A ", *map(str, range(3, adata.n_vars))]
    adata.var_names = adata.var_names.str.replace("gene", "g")
    path = write(adata)
    cells, _ = load_cells(DataConfig(path=path, genes="all", gene_key="symbol", regulators=["A", "3"]))
    notes = " ".join(cells.notes)
    for note in (
        f"genes are used ({cells.vocabulary[0]}, total,  A  and {adata.n_vars - 3} more), 1 of them as regulators.",
        f"1 of {adata.n_vars} genes have no name in the column 'symbol' of var (data.gene_key)",
        "1 gene names are those of measurements or numbers of cells ('total')",
        "1 are not in the data ('A'); some differ only in spaces or unusual characters ('A' and ' A ')",
    ):
        assert note in notes


def test_a_missing_column_names_the_nearest(adata, write):
    path = write(adata)
    with pytest.raises(
        DataError, match=r"data\.label_key is 'lable', which is not a column of obs; did you mean 'label'\?"
    ):
        load_cells(DataConfig(path=path, label_key="lable"))
    with pytest.raises(DataError, match=r"data\.group_key is 'donor'.*obs has 'label'"):
        load_cells(DataConfig(path=path, group_key="donor"))


def test_a_column_without_labels_is_refused():
    with pytest.raises(DataError, match="Column 'label' of obs holds no labels"):
        read_labels(pd.DataFrame({"label": [None, ""]}), "label")


def test_groups_without_values_or_that_are_the_types_are_refused(adata, write):
    adata.obs["donor"] = np.nan
    with pytest.raises(DataError, match=r"The column 'donor' of obs \(data\.group_key\) has no value for any cell"):
        load_cells(DataConfig(path=write(adata), group_key="donor"))
    with pytest.raises(ValueError, match=r"data\.group_key and data\.label_key are both 'label'"):
        DataConfig(path="cells.h5ad", group_key="label", label_key="label")


def test_groups_stay_together_and_a_missing_group_is_one(adata, write):
    donors = np.array(["d1", "d2", "d3", "d4", None], object)[np.arange(adata.n_obs) % 5]
    adata.obs["donor"] = pd.Categorical(donors)
    cells, split = load_cells(DataConfig(path=write(adata), group_key="donor"))
    owners = [set(pd.Series(donors[part]).fillna("none")) for part in (split.train, split.validation, split.test)]
    assert sum(map(len, owners)) == len(set.union(*owners)) == 5
    assert len(set(zip(cells.groups, map(str, donors), strict=True))) == len(set(cells.groups)) == 5
    assert load_cells(DataConfig(path=write(adata)))[0].groups is None


def test_property_is_float_with_nan(adata, write):
    adata.obs["age"] = np.where(np.arange(adata.n_obs) == 3, np.nan, np.arange(adata.n_obs))
    cells, _ = load_cells(DataConfig(path=write(adata)), property_key="age")
    assert cells.property.dtype == np.float32
    assert np.isnan(cells.property[3]) and cells.property[4] == 4
    with pytest.raises(DataError, match="Column 'label' of obs is not numeric"):
        load_cells(DataConfig(path=write(adata)), property_key="label")


def test_a_state_is_read_with_nan_and_needs_numbers(adata, write):
    adata.obs["age"] = np.r_[np.nan, np.inf, np.arange(38)]
    adata.obs["unknown"] = np.nan
    path = write(adata)
    cells, _ = load_cells(DataConfig(path=path, state_key="age"))
    assert cells.state_name == "age" and cells.state.dtype == np.float32
    assert np.isnan(cells.state[:2]).all() and cells.state[2:].tolist() == [*range(38)]
    assert load_cells(DataConfig(path=path))[0].state is None
    with pytest.raises(DataError, match=r"'unknown' of obs holds no numbers; set data\.state_key to another"):
        load_cells(DataConfig(path=path, state_key="unknown"))
    with pytest.raises(DataError, match=r"'label' of obs is not numeric; set data\.state_key to a numeric column"):
        load_cells(DataConfig(path=path, state_key="label"))


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
    counts[np.r_[split.validation, split.test]] = 500 * np.eye(adata.n_vars)[np.r_[split.validation, split.test] % 12]
    adata.X = counts
    again, _ = load_cells(DataConfig(path=write(adata), genes=5), seed=4)
    assert (again.vocabulary, again.target_total) == (cells.vocabulary, cells.target_total)


def test_regulators_are_positions_in_the_vocabulary(adata, write):
    cells, _ = load_cells(DataConfig(path=write(adata), genes=4, regulators=["gene9", "gene0", "gene2"]))
    assert [cells.vocabulary[position] for position in cells.regulators] == ["gene0", "gene2", "gene9"]
    assert cells.regulators.dtype == np.int64
    assert any("3 of 3 regulators" in note for note in cells.notes)


def test_expression_is_not_transformed(adata, write):
    adata.X = adata.X * 0.25
    cells, _ = load_cells(DataConfig(path=write(adata), values="expression"))
    np.testing.assert_array_equal(cells.multiplicity.toarray(), adata.X.toarray())
    assert cells.target_total is None
    with pytest.raises(ConfigError, match=r"data\.duplicates: sum adds counts"):
        load_cells(DataConfig(path=write(adata), values="expression", duplicates="sum"))


def test_simulated_cells_bring_their_truth(adata, write):
    cells, _ = load_cells(DataConfig(path="simulated:", label_key="cell_type"))
    assert set(cells.truth.columns) == {"source", "target", "sign"}
    assert set(cells.truth["source"]) <= set(cells.vocabulary)
    assert load_cells(DataConfig(path=write(adata)))[0].truth is None


# Another AnnData for a trained model.


def test_the_training_data_match_themselves(adata, write):
    config = DataConfig(path=write(adata), genes=5, label_key="label")
    cells, _ = load_cells(config)
    again = cells_for_vocabulary(
        adata, config, cells.vocabulary, classes=cells.classes, target_total=cells.target_total
    )
    np.testing.assert_array_equal(again.multiplicity.toarray(), cells.multiplicity.toarray())
    np.testing.assert_array_equal(again.labels, cells.labels)


def test_genes_are_placed_by_name_and_missing_ones_are_absent(adata):
    vocabulary = ["gene5", "gene1", "unknown", "gene0"]
    cells = cells_for_vocabulary(adata[:, ::-1], DataConfig(path="x", multiplicity="counts"), vocabulary)
    counts = adata.to_df()
    for position, gene in enumerate(vocabulary):
        expected = counts[gene] if gene in counts else 0 * counts["gene0"]
        np.testing.assert_array_equal(cells.multiplicity[:, [position]].toarray().ravel(), expected)
    assert cells.multiplicity.has_sorted_indices
    assert "3 of the model's 4 genes" in cells.notes[0]


def test_labels_take_the_models_classes(adata):
    config = DataConfig(path="x", label_key="label", multiplicity="counts")
    cells = cells_for_vocabulary(adata, config, list(adata.var_names), classes=["T/NK cell", "other", "B cell"])
    expected = {"T/NK cell": 0, "B cell": 2, "CD14+ monocyte": -1}
    assert cells.labels.tolist() == [expected[label] for label in adata.obs["label"]]


@pytest.mark.parametrize(
    ("first", "sentence"),
    [
        ("CD14", r"shares 0 of 3 genes with the model\. Its names look like 'gene0'; the model's are like 'CD14'"),
        ("gene1", r"shares 1 of 3 genes with the model\. At least half of them are needed"),
    ],
)
def test_unknown_or_too_few_genes_are_a_mismatch(adata, first, sentence):
    with pytest.raises(VocabularyMismatch, match=sentence):
        cells_for_vocabulary(adata, DataConfig(path="x"), [first, "SPI1", "CD3E"])


def test_ensembl_ids_are_noticed_and_the_fitting_column_named(adata):
    adata.var["symbol"] = adata.var_names
    adata.var["chromosome"] = "1"
    names = list(adata.var_names)
    adata.var_names = [f"ENSG{number:011d}" for number in range(adata.n_vars)]
    with pytest.raises(VocabularyMismatch, match=r"look like Ensembl ids \('ENSG0+'\); set data\.gene_key: symbol\."):
        cells_for_vocabulary(adata, DataConfig(path="x"), names)


def test_var_names_are_kept_beside_symbols(adata, write):
    symbols = [f"s{number}" for number in range(adata.n_vars)]
    symbols[3] = symbols[1]  # of a gene with two columns, the first one's name
    adata.var["symbol"] = symbols
    cells, _ = load_cells(DataConfig(path=write(adata), genes="all", gene_key="symbol", duplicates="sum"))
    expected = {symbol: str(name) for symbol, name in reversed(list(zip(symbols, adata.var_names, strict=True)))}
    assert dict(zip(cells.vocabulary, cells.var_names, strict=True)) == {
        gene: expected[gene] for gene in cells.vocabulary
    }
    assert load_cells(DataConfig(path=write(adata), genes="all"))[0].var_names is None


@pytest.mark.parametrize(
    "values",
    [1.0, [np.inf, *[2.0] * 39], [np.nan] * 39 + [1.0], np.arange(40) + 2**62],
    ids=["constant", "infinite", "one number", "equal in single precision"],
)
def test_a_state_along_which_nothing_changes_is_refused(adata, write, values):
    adata.obs["time"] = values
    with pytest.raises(DataError, match=r"Column 'time' of obs is .* no cell is further along than another; set data"):
        load_cells(DataConfig(path=write(adata), state_key="time"))


def test_cells_without_counts_and_without_a_group_are_counted(adata, write):
    values = adata.X.toarray()
    values[[3, 5]] = 0
    adata.X = sparse.csr_matrix(values)
    adata.obs["donor"] = pd.Categorical(["x", "y", "z", None] * 10)
    notes = " ".join(load_cells(DataConfig(path=write(adata), group_key="donor"))[0].notes)
    assert "2 of 40 cells hold none of the genes; nothing is learned from them." in notes
    assert "10 cells have nothing in the column 'donor' of obs; they stay together as one group." in notes


@pytest.mark.parametrize("name", ["a\n", "a\tb", "\x07"])
def test_control_characters_in_names_of_genes_are_refused(adata, write, name):
    adata.var_names = [name, *adata.var_names[1:]]
    with pytest.raises(DataError, match="has a tab or another control character in its name; rename it first"):
        load_cells(DataConfig(path=write(adata)))


def test_what_columns_leave_out_is_said(adata, write):
    """Donors without a name, a property without a number, and types that groups keep out of the training."""
    adata.obs["blank"] = ["" if cell % 5 == 0 else f"D{cell % 4}" for cell in range(adata.n_obs)]
    adata.obs["age"] = [np.inf if cell == 1 else float(cell) for cell in range(adata.n_obs)]
    adata.obs["type"] = ["abc"[cell % 3] for cell in range(adata.n_obs)]
    adata.obs["of_type"] = [f"donor of {label}" for label in adata.obs["type"]]
    path = write(adata)
    cells, _ = load_cells(DataConfig(path=path, label_key="type", group_key="blank"), "age")
    notes = " ".join(cells.notes)
    empty = len(range(0, adata.n_obs, 5))
    assert f"{empty} cells have nothing in the column 'blank' of obs; they stay together as one group." in notes
    assert "1 cells have no finite number in the column 'age' of obs (objectives.property.key)." in notes
    cells, _ = load_cells(DataConfig(path=path, label_key="type", group_key="of_type"))
    assert "No training cell has the type '" in " ".join(cells.notes)


def test_numbers_of_rows_among_the_genes_are_named(adata, write):
    adata.var_names = ["Unnamed: 0", "index", *adata.var_names[2:]]
    cells, _ = load_cells(DataConfig(path=write(adata), genes="all"))
    assert "2 gene names are those of measurements or numbers of cells ('Unnamed: 0', 'index')" in " ".join(cells.notes)
