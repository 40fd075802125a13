"""Names of genes, their selection, regulators."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from grn.cells.genes.lists import read_gene_list
from grn.cells.genes.names import (
    choose_genes,
    choose_regulators,
    gene_names,
    merge_duplicates,
    once_each,
)
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError

NAMES = ["A", "NA", "nan", "B"]


def test_gene_key_falls_back_to_the_index_where_a_name_is_missing():
    var = pd.DataFrame({"symbol": ["A", None, "", "nan"]}, index=["id1", "id2", "id3", "id4"])
    assert gene_names(var, "symbol") == ["A", "id2", "id3", "nan"]
    assert gene_names(var, None) == ["id1", "id2", "id3", "id4"]
    with pytest.raises(DataError) as caught:
        gene_names(var, "symbols")
    assert caught.value.field == "data.gene_key"


def test_duplicates_are_summed_in_the_first_place_where_values_are_counts():
    twice = ["A", "B", "A"]
    for names, fields in (
        (twice, {}),
        (twice, {"values": "expression", "duplicates": "sum"}),
        (["A", "a\tb"], {}),
    ):
        with pytest.raises(DataError):  # the last is a name that no table could hold
            once_each(names, DataConfig(path="x", **fields))
    names, place = once_each(twice, DataConfig(path="x", duplicates="sum"))
    values = merge_duplicates(sparse.csr_matrix([[1.0, 2, 4], [0, 5, 6]]), place)
    assert names == ["A", "B"] and values.has_sorted_indices
    np.testing.assert_array_equal(values.toarray(), [[5, 2], [6, 5]])


def test_the_most_variable_genes_are_chosen_with_the_regulators_that_are_expressed():
    """In the order of the data; 7, 30 and 31 differ fourfold between two halves of the cells."""
    generator = np.random.default_rng(0)
    rates = np.full((200, 60), 5.0)
    rates[:100, [7, 30, 31]] = 20
    rates[:, 50] = 0
    counts = sparse.csr_matrix(generator.poisson(rates).astype(np.float32))
    names = list(map(str, range(60)))
    assert list(choose_genes(counts, names, 3, None, "counts")) == [7, 30, 31]
    assert list(choose_genes(counts, names, 3, np.array([2, 30, 50]), "counts")) == [2, 7, 30, 31]
    values = sparse.csr_matrix(generator.normal(5, [0.1, 3, 0.2, 2], (100, 4)).clip(0))
    assert list(choose_genes(values, NAMES, 2, None, "expression")) == [1, 3], "by variance"
    for choice in ("all", 4, 100):
        assert list(choose_genes(sparse.csr_matrix((5, 4)), NAMES, choice, None, "counts")) == [
            0,
            1,
            2,
            3,
        ]


def test_a_gene_list_ignores_blank_lines_comments_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbf# factors\r\nSPI1\r\n\r\n  NA \r\nSPI1\r\n")
    assert read_gene_list(str(path), "data.regulators") == ["SPI1", "NA"]


@pytest.mark.parametrize("content", [b"# nothing\n", b"<html>\n", b"A,B,C\nD,E,F\n"])
def test_a_list_that_cannot_be_used_is_refused_with_its_field(tmp_path, content):
    (tmp_path / "list.txt").write_bytes(content)
    for name in (str(tmp_path / "list.txt"), str(tmp_path), "tfs"):
        with pytest.raises(DataError) as caught:
            read_gene_list(name, "data.genes")
        assert caught.value.field == "data.genes"


def test_regulators_are_found_by_name_and_all_genes_may_regulate():
    assert list(choose_regulators(NAMES, ["B", "NA", "SPI1", "GATA1"])) == [1, 3]
    assert choose_regulators(NAMES, "all") is None
    with pytest.raises(DataError, match=r"'SPI1'.*'A', 'NA', 'nan', \.\.\.") as caught:
        choose_regulators(NAMES, ["SPI1"])
    assert caught.value.field == "data.regulators"
