"""Published lists of transcription factors: checked, kept, and used by name; no test goes over the network."""

from __future__ import annotations

import pytest

from grn.cells import gene_lists
from grn.cells.gene_lists import LISTS, digest, get_list, known, names_in, path_of, read_list
from grn.cells.genes import choose_regulators
from grn.cli.main import main
from grn.errors import DataError

TABLE = (
    "Species\tSymbol\tEnsembl\nDanio_rerio\tpax6a\tENSDARG1\nDanio_rerio\t-\tE2\nDanio_rerio\tsox2\tE3\nx\tsox2\tE4\n"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRN_CACHE", str(tmp_path / "cache"))


def offers(content: bytes):
    return lambda url: content


def test_a_list_is_kept_and_read_by_name():
    assert get_list("mouse_tfs", download=offers(b"Spi1\r\nPax5\r\n\r\nSpi1\r\n")) == ["Spi1", "Pax5"]
    assert read_list("mouse_tfs") == ["Spi1", "Pax5"]
    assert list(choose_regulators(["Actb", "Spi1"], "mouse_tfs")) == [1]


def test_a_column_of_a_table_is_read():
    assert names_in(TABLE.encode(), LISTS["zebrafish_tfs"]) == ["pax6a", "sox2"]
    assert names_in(b"Gene\nsox2\n", LISTS["zebrafish_tfs"]) == []


def test_the_hash_is_that_of_the_names_whatever_their_order_and_line_ends():
    assert digest(["B", "A", "B"]) == digest(["A", "B"]) != digest(["A"])
    assert known("human_tfs").digest is not None and len(known("human_tfs").digest) == 64


def test_a_list_with_a_known_hash_is_refused_where_it_is_another(tmp_path):
    with pytest.raises(DataError, match="SHA-256"):
        get_list("human_tfs", download=offers(b"SPI1\nPAX5\n"))
    assert not path_of("human_tfs").exists()


def test_a_list_without_a_known_hash_is_compared_with_what_was_got_first():
    get_list("mouse_tfs", download=offers(b"Spi1\nPax5\n"))
    get_list("mouse_tfs", download=offers(b"Pax5\r\nSpi1\r\n"))
    with pytest.raises(DataError, match="SHA-256"):
        get_list("mouse_tfs", download=offers(b"Spi1\n"))
    assert set(read_list("mouse_tfs")) == {"Spi1", "Pax5"}


def test_a_copy_in_a_file_works_without_a_network(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gene_lists, "_downloaded", None)
    (tmp_path / "copy.txt").write_text("Spi1\nPax5\n")
    assert main(["data", "get", "mouse_tfs", "--file", str(tmp_path / "copy.txt")]) == 0
    said = capsys.readouterr().out
    assert "mouse_tfs: 2 genes of mouse (MGI symbols), kept in" in said and "Licence: " in said
    assert main(["data", "get", "mouse_tfs", "--file", str(tmp_path / "none.txt")]) == 2
    assert "none.txt cannot be read" in capsys.readouterr().err


def test_a_list_that_was_changed_on_the_disk_is_refused():
    get_list("mouse_tfs", download=offers(b"Spi1\nPax5\n"))
    path_of("mouse_tfs").write_text("Spi1\n")
    with pytest.raises(DataError, match="get it with: grn data get mouse_tfs"):
        read_list("mouse_tfs")


@pytest.mark.parametrize("content", [b"<html><body>404 Not Found</body></html>", b"\n \n# nothing\n", b"\xff\xfe\x00"])
def test_what_is_no_list_is_refused_and_not_kept(content):
    with pytest.raises(DataError, match="give --file a copy of"):
        get_list("mouse_tfs", download=offers(content))
    assert not path_of("mouse_tfs").exists()


def test_a_list_that_was_not_got_and_one_that_does_not_exist_are_one_sentence(capsys):
    with pytest.raises(DataError, match="get it with: grn data get human"):
        choose_regulators(["SPI1"], "human_tfs")
    assert main(["data", "describe", "rat_tfs"]) == 2
    assert "There is no list 'rat_tfs'; the lists are human_tfs, mouse_tfs" in capsys.readouterr().err


def test_a_file_of_that_name_is_the_users(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "human_tfs").write_text("SPI1\n")
    assert list(choose_regulators(["SPI1", "PAX5"], "human_tfs")) == [0]
