"""Networks as every tool writes them, and files that hold no network."""

import errno
import gzip

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse

from grn.analysis.network_files import open_network_file
from grn.errors import DataError
from grn.networks.signed_network import edge_list, open_network

EDGES = pd.DataFrame({"source": ["NA", "nan"], "target": ["x", "NA"], "weight": [0.5, -2.0]})
TEXTS = {
    "decoupler.csv": "source,target,weight\nNA,x,0.5\nnan,NA,-2\n",
    "indexed.csv": ",source,target,weight,pvalue\n0,NA,x,0.5,0.1\n1,nan,NA,-2,\n",
    "grnboost.tsv": "TF\ttarget\timportance\nNA\tx\t0.5\nnan\tNA\t-2\n",
    "pyscenic.csv": "TF,target,importance\r\nNA,x,5e-1\r\nnan,NA,-2\r\n",
    "arboreto.tsv": "NA\tx\t0.5\nnan\tNA\t-2\n",
    "rankedEdges.csv": "Gene1\tGene2\tEdgeWeight\nNA\tx\t0.5\nnan\tNA\t-2\n",
    "genie3.txt": '"regulatoryGene" "targetGene" "weight"\n'.replace(" ", "\t")
    + '"1"\t"NA"\t"x"\t0.5\n2\tnan\tNA\t-2\n',
    "spaced.csv": "source, target, weight\nNA, x, 0.5\nnan, NA, -2\n",
    "spaced and bare.csv": 'NA, "x", 0.5\nnan, "NA", -2\n',
    "pandas.csv": "0,1,2\nNA,x,0.5\nnan,NA,-2\n",
    "pandas with index.csv": ",0,1,2\n0,NA,x,0.5\n1,nan,NA,-2\n",
    "numbered.tsv": "0\t1\t2\t3\nNA\tx\t0.5\t\nnan\tNA\t-2\t\n",
    "mor.csv": "source,target,mor\nNA,x,0.5\nnan,NA,-2\n",
    "spaced behind.csv": "source ,target , weight\nNA , x ,0.5 \n nan,NA , -2\n",
    "R.csv": "source,target,weight\n2,NA,x,0.5\n1,nan,NA,-2\n",
    "ended.csv": "source,target,weight\nNA,x,0.5,\nnan,NA,-2,\n",
    "ended and bare.csv": "NA,x,0.5,\nnan,NA,-2,\n",
    "twice.csv": "source,target,weight,weight,note,note\nNA,x,0.5,0.5,1,2\nnan,NA,-2,-2,1,2\n",
    "marked.csv": "\ufeffSource;Target;Weight\nNA;x;0.5\nnan;NA;-2\n",
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_tables_of_every_tool_are_read(name, tmp_path):
    (tmp_path / name).write_bytes(TEXTS[name].encode())
    pd.testing.assert_frame_equal(open_network_file(tmp_path / name).edges, EDGES)


def test_genes_that_are_named_by_numbers_are_not_read_as_a_header(tmp_path):
    (tmp_path / "bare.csv").write_text("1,2,0.5\n0,1,3\n")
    assert open_network_file(tmp_path / "bare.csv").edges.to_numpy().tolist() == [["1", "2", 0.5], ["0", "1", 3.0]]


def test_row_names_of_r_are_not_read_as_genes(tmp_path):
    (tmp_path / "named.tsv").write_text("source\ttarget\tweight\na.1\tA\tx\t1\na.2\tA\ty\t2\n")
    assert open_network_file(tmp_path / "named.tsv").edges.to_numpy().tolist() == [["A", "x", 1.0], ["A", "y", 2.0]]


def test_an_empty_cell_between_tabs_stays_empty(tmp_path):
    (tmp_path / "gap.tsv").write_text("source\tmode\ttarget\tweight\nA\t\tB\t1\n")
    assert open_network_file(tmp_path / "gap.tsv").edges.to_numpy().tolist() == [["A", "B", 1.0]]


@pytest.mark.parametrize("problem", [MemoryError("9 TiB"), PermissionError(errno.EACCES, "Permission denied")])
@pytest.mark.parametrize(("name", "reader"), [("a.h5ad", "anndata.read_h5ad"), ("a.parquet", "pandas.read_parquet")])
def test_what_the_machine_refuses_is_not_reported_as_damage(name, reader, problem, tmp_path, monkeypatch):
    def refuse(path, **options):
        raise problem

    (tmp_path / name).touch()
    monkeypatch.setattr(reader, refuse)
    with pytest.raises(type(problem)):
        open_network_file(tmp_path / name)


def test_compressed_tables_are_read(tmp_path):
    path = tmp_path / "adjacencies.tsv.gz"
    path.write_bytes(gzip.compress(TEXTS["grnboost.tsv"].encode()))
    pd.testing.assert_frame_equal(open_network_file(path).edges, EDGES)


def damaged(compressed: bytes) -> dict[str, bytes]:
    flipped = bytearray(compressed)
    flipped[len(flipped) // 2] ^= 0xFF
    checksum = bytearray(compressed)
    checksum[-6] ^= 0xFF
    return {
        "truncated": compressed[: len(compressed) // 2],
        "flipped": bytes(flipped),
        "checksum": bytes(checksum),
    }


@pytest.mark.parametrize("rows", [3, 20_000], ids=["in the first line", "later"])
@pytest.mark.parametrize("how", ["truncated", "flipped", "checksum"])
def test_a_damaged_gz_is_refused_in_one_sentence(how, rows, tmp_path):
    numbers = np.random.default_rng(0).random(rows)
    text = "\n".join(["TF,target,importance", *(f"R{row},G{row},{weight}" for row, weight in enumerate(numbers))])
    path = tmp_path / "adjacencies.csv.gz"
    path.write_bytes(damaged(gzip.compress(text.encode()))[how])
    with pytest.raises(DataError, match="damaged") as caught:
        open_network_file(path)
    assert "\n" not in str(caught.value)


def test_parquet_and_run_folders_keep_the_confidence(tmp_path):
    edges = EDGES.assign(confidence=[1.0, 0.5])
    edges.to_parquet(tmp_path / "edges.parquet", index=False)
    for path in (tmp_path / "edges.parquet", tmp_path):
        pd.testing.assert_frame_equal(open_network_file(path).edges, edges)


def test_a_run_s_network_and_edges_are_one(tiny_run):
    from_edges, from_network = open_network_file(tiny_run), open_network_file(tiny_run / "network.h5ad")
    as_pairs = [
        {(edge.source, edge.target): edge.weight for edge in file.edges.itertuples() if edge.source != edge.target}
        for file in (from_edges, from_network)
    ]
    assert as_pairs[0] == pytest.approx(as_pairs[1])
    assert set(from_edges.genes) == set(from_network.genes)


def test_a_run_s_networks_of_cell_types_are_those_of_its_h5ad(tiny_run, tmp_path):
    known = open_network(tiny_run / "network.h5ad")
    for path in (tiny_run, tiny_run / "edges.parquet", tiny_run / "network.h5ad"):
        network = open_network_file(path)
        by_type = network.read_types()
        assert list(by_type) == list(known.by_type) and len(by_type) > 1
        for label, weights in known.by_type.items():
            assert by_type[label]["weight"].tolist() == edge_list(weights, known.genes)["weight"].tolist()
        label = list(by_type)[1]
        assert network.of_type(label).edges.equals(by_type[label])
        assert network.of_type(label).genes.equals(network.genes) and network.of_type(label).of_run == network.of_run


@pytest.mark.parametrize("name", ["edges_by_type.parquet", "table.csv"])
def test_a_column_cell_type_gives_each_type_its_network(name, tmp_path):
    rows = [("NA", "x", 0.5, 0.5, "a/b"), ("NA", "x", -2.0, 1.0, "NA"), ("nan", "NA", 1.0, 1.0, "a/b")]
    table = pd.DataFrame(rows, columns=["source", "target", "weight", "confidence", "cell_type"])
    write = table.to_parquet if name.endswith("parquet") else table.to_csv
    write(tmp_path / name, index=False)
    network = open_network_file(tmp_path / name)
    assert len(network.edges) == 3 and list(network.genes) == ["NA", "nan", "x"]
    by_type = network.read_types()
    assert {label: edges["weight"].tolist() for label, edges in by_type.items()} == {"a/b": [0.5, 1.0], "NA": [-2.0]}
    if name.endswith("parquet"):  # a folder with both files
        table.drop(columns="cell_type").to_parquet(tmp_path / "edges.parquet", index=False)
        assert open_network_file(tmp_path).read_types().keys() == by_type.keys()


def test_networks_without_types_say_so(tmp_path):
    EDGES.to_csv(tmp_path / "network.csv", index=False)
    network = open_network_file(tmp_path / "network.csv")
    assert network.read_types() == {}
    with pytest.raises(DataError, match="has no cell type 'a'"):
        network.of_type("a")


def test_in_an_h5ad_rows_are_targets(tmp_path):
    adata = AnnData(
        np.zeros((1, 2), np.float32), var=pd.DataFrame(index=pd.Index(["target", "regulator"], dtype=object))
    )
    adata.varp["grn"] = sparse.csr_matrix(np.array([[0, -2.0], [0, 0]]))
    adata.write_h5ad(tmp_path / "network.h5ad")
    found = open_network_file(tmp_path / "network.h5ad")
    assert found.edges.to_numpy().tolist() == [["regulator", "target", -2.0]]
    assert set(found.genes) == {"target", "regulator"}
    assert found.read_types() == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("empty.csv", ""),
        ("header.csv", "source,target,weight\n"),
        ("list.txt", "SOX2\nPAX6\n"),
        ("other.csv", "a,b,c\nx,y,z\n"),
        ("words.csv", "source,target,weight\nA,B,1\nA,C,high\n"),
        ("nan.csv", "source,target,weight\nA,B,nan\nA,C,\n"),
        ("inf.csv", "source,target,weight\nA,B,-inf\n"),
        ("gap.csv", "source,target,weight\n,B,1\n"),
        ("ragged.csv", "source,target,weight\nA,B,1\nA,B,1,2,3\n"),
        ("longer.csv", "source,target,weight\nA,B,1\n\nA,B,1,2\n"),
        ("shifted.csv", "TF,target,importance\nR6,R8,R9,0.77\n"),
        ("again.csv", "TF,target,importance\nR6,R8,R9,1\nR9,R4,G9,2\n"),
        ("repeated.csv", "source,target,weight\nA,B,1,2\nA,C,1,2\n"),
        ("quote.csv", 'source,target,weight\nA,B,1\n"A,B,1\nA,C,1\n'),
        ("long quote.csv", 'source,target,weight\n"A,B,1\n' + "A,C,1\n" * 40_000),
        ("latin.csv", "source,target,weight\nA,\u00e9,1\n".encode("latin-1")),
        ("late.csv", b"source,target,weight\n" + b"A,B,1\n" * 40_000 + b"A,\xe9,1\n"),
        ("null.csv", "source,target,weight\na\0b,x,1\n"),  # pandas would cut the name off there
        ("damaged.parquet", "PAR1 no more"),
        ("damaged.h5ad", b"no\x00HDF5"),
        ("binary.csv", b"\xff\xfe\x00\x01"),
    ],
)
def test_a_file_without_a_network_is_refused_in_one_sentence(name, text, tmp_path):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError) as caught:
        open_network_file(tmp_path / name)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_paths_without_a_network_are_refused_with_what_they_hold(tmp_path):
    (tmp_path / "edges.csv").touch()
    with pytest.raises(DataError, match=r"edge\.csv does not exist; did you mean \S*edges\.csv\?"):
        open_network_file(tmp_path / "edge.csv")
    with pytest.raises(DataError, match=r"a folder without edges\.parquet"):
        open_network_file(tmp_path)
    AnnData(np.zeros((1, 2), np.float32)).write_h5ad(tmp_path / "cells.h5ad")
    with pytest.raises(DataError, match=r"varp\['grn'\] is missing"):
        open_network_file(tmp_path / "cells.h5ad")
