"""Published lists of transcription factors: checked, kept, and used by name; no test goes over the
network.
"""

from __future__ import annotations

import gzip

import pytest

from grn.cells.genes.lists import get_list, path_of, read_list
from grn.cells.genes.names import choose_regulators
from grn.cli.main import main
from grn.runtime.errors import DataError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRN_CACHE", str(tmp_path / "cache"))


def test_a_list_is_kept_and_read_by_name(tmp_path, monkeypatch):
    with pytest.raises(DataError):
        choose_regulators(["SPI1"], "mouse_tfs")
    assert get_list("mouse_tfs", download=lambda url: b"Spi1\r\nPax5\r\n\r\nSpi1\r\n") == [
        "Spi1",
        "Pax5",
    ]
    assert read_list("mouse_tfs") == ["Spi1", "Pax5"]
    assert list(choose_regulators(["Actb", "Spi1"], "mouse_tfs")) == [1]
    path_of("mouse_tfs").write_text("Spi1\n")  # changed on the disk
    with pytest.raises(DataError):
        read_list("mouse_tfs")
    table = b"Species\tSymbol\nDanio_rerio\tpax6a\nDanio_rerio\t-\nDanio_rerio\tsox2\nx\tsox2\n"
    assert get_list("zebrafish_tfs", download=lambda url: table) == ["pax6a", "sox2"], (
        "a column of a table"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "human_tfs").write_text("SPI1\n")  # a file of this name is the user's
    assert list(choose_regulators(["SPI1", "PAX5"], "human_tfs")) == [0]


def test_a_list_is_compared_with_a_known_hash_or_with_what_was_got_first():
    """Whatever the order and line ends."""
    with pytest.raises(DataError, match="SHA-256"):
        get_list("human_tfs", download=lambda url: b"SPI1\nPAX5\n")
    assert not path_of("human_tfs").exists()
    get_list("mouse_tfs", download=lambda url: b"Spi1\nPax5\n")
    get_list("mouse_tfs", download=lambda url: b"Pax5\r\nSpi1\r\n")
    with pytest.raises(DataError, match="SHA-256"):
        get_list("mouse_tfs", download=lambda url: b"Spi1\n")
    assert set(read_list("mouse_tfs")) == {"Spi1", "Pax5"}


def test_a_copy_in_a_file_works_without_a_network(tmp_path):
    (tmp_path / "copy.txt").write_text("Spi1\nPax5\n")
    assert main(["data", "get", "mouse_tfs", "--file", str(tmp_path / "copy.txt")]) == 0
    assert set(read_list("mouse_tfs")) == {"Spi1", "Pax5"}
    assert main(["data", "get", "mouse_tfs", "--file", str(tmp_path / "none.txt")]) == 2


@pytest.mark.parametrize(
    "content", [b"<html><body>404 Not Found</body></html>", b"\n \n# nothing\n", b"\xff\xfe\x00"]
)
def test_what_is_no_list_is_refused_and_not_kept(content):
    with pytest.raises(DataError):
        get_list("mouse_tfs", download=lambda url: content)
    assert not path_of("mouse_tfs").exists()


def test_copies_may_be_packed_or_in_utf_16(tmp_path):
    """As people keep CollecTRI: X.csv.gz."""
    text = "source,target,weight\nMYC,TERT,1\nSPI1,PAX5,-1\n"
    (tmp_path / "net.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "net.csv").write_bytes(text.encode("utf-16"))
    for name in ("net.csv.gz", "net.csv"):
        assert get_list("collectri", tmp_path / name) == text.splitlines()
    (tmp_path / "cut.csv.gz").write_bytes((tmp_path / "net.csv.gz").read_bytes()[:20])
    with pytest.raises(DataError, match=r"cut\.csv\.gz"):
        get_list("collectri", tmp_path / "cut.csv.gz")


def test_a_list_of_regulators_in_utf_16_or_a_spreadsheet(tmp_path):
    (tmp_path / "tfs.txt").write_bytes("SPI1\r\nPAX5\r\n".encode("utf-16"))
    assert list(choose_regulators(["PAX5", "X", "SPI1"], str(tmp_path / "tfs.txt"))) == [0, 2]
    (tmp_path / "tfs.xlsx").write_bytes(b"PK\x03\x04\x14\x00" + bytes(range(256)))
    with pytest.raises(DataError, match=r"tfs\.xlsx is no text, as a spreadsheet"):
        choose_regulators(["PAX5"], str(tmp_path / "tfs.xlsx"))
