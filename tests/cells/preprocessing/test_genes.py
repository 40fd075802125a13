"""Names of genes, their selection, regulators."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from grn.cells.genes import choose_genes, choose_regulators, gene_names, merge_duplicates, read_gene_list
from grn.cells.load import load_cells
from grn.config.schema import DataConfig
from grn.errors import DataError

NAMES = ["A", "NA", "nan", "B"]


def test_na_and_nan_are_genes(adata, write, tmp_path):
    adata.var_names = ["NA", "nan", *adata.var_names[2:]]
    (tmp_path / "listed.txt").write_text("nan\nNA\n")
    path = write(adata)
    cells, _ = load_cells(DataConfig(path=path, genes="all", regulators=["NA", "nan"]))
    assert cells.vocabulary[:2] == ("NA", "nan")
    assert list(cells.regulators) == [0, 1]
    listed, _ = load_cells(DataConfig(path=path, genes=str(tmp_path / "listed.txt")))
    assert listed.vocabulary == ("NA", "nan"), "the order is that of the data"


def test_gene_key_falls_back_to_the_index_where_a_name_is_missing():
    var = pd.DataFrame({"symbol": ["A", None, "", "nan"]}, index=["id1", "id2", "id3", "id4"])
    assert gene_names(var, "symbol") == ["A", "id2", "id3", "nan"]
    assert gene_names(var, None) == ["id1", "id2", "id3", "id4"]


def test_an_unknown_gene_key_names_the_nearest_column():
    var = pd.DataFrame({"gene_name": ["A"]})
    with pytest.raises(DataError, match="'gene_names', which is not a column of var; did you mean 'gene_name'"):
        gene_names(var, "gene_names")


def test_duplicates_are_refused_with_their_names():
    with pytest.raises(DataError, match=r"Some gene names occur more than once \(1: 'A'\); set data\.duplicates: sum"):
        merge_duplicates(sparse.csr_matrix((1, 3)), ["A", "B", "A"], "refuse")


def test_summed_duplicates_take_the_first_place():
    values, names = merge_duplicates(sparse.csr_matrix([[1.0, 2, 4], [0, 5, 6]]), ["A", "B", "A"], "sum")
    assert names == ["A", "B"]
    np.testing.assert_array_equal(values.toarray(), [[5, 2], [6, 5]])
    assert values.has_sorted_indices


def counts_with_variable_genes() -> sparse.csr_matrix:
    """200 cells, 60 genes; 7, 30 and 31 differ fourfold between two halves of the cells."""
    generator = np.random.default_rng(0)
    rates = np.full((200, 60), 5.0)
    rates[:100, [7, 30, 31]] = 20
    return sparse.csr_matrix(generator.poisson(rates).astype(np.float32))


def test_the_most_variable_genes_are_chosen_in_the_order_of_the_data():
    chosen = choose_genes(counts_with_variable_genes(), list(map(str, range(60))), 3, None, "counts")
    assert list(chosen) == [7, 30, 31]


def test_named_regulators_are_kept_in_addition_where_expressed():
    counts = counts_with_variable_genes().tolil()
    counts[:, 50] = 0
    chosen = choose_genes(counts.tocsr(), list(map(str, range(60))), 3, np.array([2, 30, 50]), "counts")
    assert list(chosen) == [2, 7, 30, 31]


def test_expression_is_chosen_by_variance():
    values = sparse.csr_matrix(np.random.default_rng(0).normal(5, [0.1, 3, 0.2, 2], (100, 4)).clip(0))
    assert list(choose_genes(values, NAMES, 2, None, "expression")) == [1, 3]


@pytest.mark.parametrize("choice", ["all", 4, 100])
def test_all_genes_stay_when_asked_for_all_or_more(choice):
    assert list(choose_genes(sparse.csr_matrix((5, 4)), NAMES, choice, None, "counts")) == [0, 1, 2, 3]


def test_a_gene_list_ignores_blank_lines_comments_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbf# factors\r\nSPI1\r\n\r\n  NA \r\nSPI1\r\n")
    assert read_gene_list(str(path), "data.regulators") == ["SPI1", "NA"]


@pytest.mark.parametrize(("content", "words"), [(b"# nothing\n", "lists no genes"), (b"\xff\xfe\x00", "is not text")])
def test_a_list_that_cannot_be_used_is_refused_in_one_sentence(tmp_path, content, words):
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_gene_list(str(tmp_path / "list.txt"), "data.genes")


def test_a_missing_list_names_the_field():
    with pytest.raises(
        DataError,
        match=r"data\.regulators is 'tfs', but there is no such file; give all, a file with.* or .*, as \[tfs\]\.",
    ):
        choose_regulators(NAMES, "tfs")


def test_regulators_that_are_missing_are_counted_and_shown():
    positions, note = choose_regulators(NAMES, ["B", "NA", "SPI1", "GATA1"])
    assert list(positions) == [1, 3]
    assert note == "2 of 4 regulators were found; 2 are not in the data ('GATA1', 'SPI1')."


def test_where_no_regulator_is_found_the_message_shows_names_of_both_sides():
    with pytest.raises(
        DataError, match=r"None of the genes of data\.regulators \('SPI1'\).*named like 'A', 'NA', 'nan', \.\.\."
    ):
        choose_regulators(NAMES, ["SPI1"])


def test_every_gene_may_regulate():
    assert choose_regulators(NAMES, "all")[0] is None


def test_regulators_that_are_nothing_are_called_so():
    with pytest.raises(DataError, match="is an empty list; list genes, or set it to all"):
        choose_regulators(["a"], [])
    with pytest.raises(DataError, match="is empty; give a file with one gene a line"):
        choose_regulators(["a"], " ")


def test_a_list_of_genes_that_is_no_file_is_named_for_what_it_is(tmp_path):
    with pytest.raises(DataError, match="which is a folder; give a file with one gene a line"):
        read_gene_list(str(tmp_path), "data.regulators")
    with pytest.raises(DataError, match="which is a pipe or device"):
        read_gene_list("/dev/null", "data.genes")
