"""Networks and references as every tool writes them, and files that hold none."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse

from grn.edges.edge_table import open_network_file, open_reference_file
from grn.runtime.errors import DataError

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
    "dorothea.csv": "tf,confidence,target,mor\nNA,A,x,0.5\nnan,E,NA,-2\n",
    "spaced behind.csv": "source ,target , weight\nNA , x ,0.5 \n nan,NA , -2\n",
    "R.csv": "source,target,weight\n2,NA,x,0.5\n1,nan,NA,-2\n",
    "ended.csv": "source,target,weight\nNA,x,0.5,\nnan,NA,-2,\n",
    "ended and bare.csv": "NA,x,0.5,\nnan,NA,-2,\n",
    "twice.csv": "source,target,weight,weight,note,note\nNA,x,0.5,0.5,1,2\nnan,NA,-2,-2,1,2\n",
    "marked.csv": "\ufeffSource;Target;Weight\nNA;x;0.5\nnan;NA;-2\n",
}


ODD = {
    "numbers as names.csv": ("1,2,0.5\n0,1,3\n", [["1", "2", 0.5], ["0", "1", 3.0]]),
    "row names.tsv": (
        "source\ttarget\tweight\na.1\tA\tx\t1\na.2\tA\ty\t2\n",
        [["A", "x", 1.0], ["A", "y", 2.0]],
    ),
    "an empty cell.tsv": ("source\tmode\ttarget\tweight\nA\t\tB\t1\n", [["A", "B", 1.0]]),
}


@pytest.mark.parametrize("name", ODD)
def test_names_are_read_as_they_are_written(name, tmp_path):
    (tmp_path / name).write_text(ODD[name][0])
    assert open_network_file(tmp_path / name).edges.to_numpy().tolist() == ODD[name][1]


@pytest.mark.parametrize("name", TEXTS)
def test_text_tables_of_every_tool_are_read(name, tmp_path):
    (tmp_path / name).write_bytes(TEXTS[name].encode())
    pd.testing.assert_frame_equal(open_network_file(tmp_path / name).edges, EDGES)


@pytest.mark.parametrize("name", ["edges_by_type.parquet", "table.csv"])
def test_a_column_cell_type_gives_each_type_its_network(name, tmp_path):
    rows = [
        ("NA", "x", 0.5, 0.5, "a/b"),
        ("NA", "x", -2.0, 1.0, "NA"),
        ("nan", "NA", 1.0, 1.0, "a/b"),
    ]
    table = pd.DataFrame(rows, columns=["source", "target", "weight", "confidence", "cell_type"])
    write = table.to_parquet if name.endswith("parquet") else table.to_csv
    write(tmp_path / name, index=False)
    network = open_network_file(tmp_path / name)
    assert len(network.edges) == 3 and list(network.genes) == ["NA", "nan", "x"]
    by_type = network.read_types()
    assert {label: edges["weight"].tolist() for label, edges in by_type.items()} == {
        "a/b": [0.5, 1.0],
        "NA": [-2.0],
    }
    if name.endswith("parquet"):  # a folder with both files
        table.drop(columns="cell_type").to_parquet(tmp_path / "edges.parquet", index=False)
        assert open_network_file(tmp_path).read_types().keys() == by_type.keys()


def test_in_an_h5ad_rows_are_targets(tmp_path):
    adata = AnnData(
        np.zeros((1, 2), np.float32),
        var=pd.DataFrame(index=pd.Index(["target", "regulator"], dtype=object)),
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
        ("list.txt", "SOX2\nPAX6\n"),
        ("other.csv", "a,b,c\nx,y,z\n"),
        ("words.csv", "source,target,weight\nA,B,1\nA,C,high\n"),
        ("nan.csv", "source,target,weight\nA,B,nan\nA,C,\n"),
        ("inf.csv", "source,target,weight\nA,B,-inf\n"),
        ("gap.csv", "source,target,weight\n,B,1\n"),
        ("ragged.csv", "source,target,weight\nA,B,1\nA,B,1,2,3\n"),
        ("shifted.csv", "TF,target,importance\nR6,R8,R9,0.77\n"),
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


SIGNED = {("NA", "x"): 1, ("nan", "x"): -1, ("NA", "y"): 0}
REFERENCES = {
    "TRRUST": "NA\tx\tActivation\t1;2\nnan\tx\tRepression\t3\nNA\ty\tUnknown\t4\n",
    "numbered.TRRUST": "0\t1\t2\t3\nNA\tx\tActivation\t1;2\n"
    "nan\tx\tRepression\t3\nNA\ty\tUnknown\t4\n",
    "spaced.TRRUST": "NA, x, Activation, 1\nnan, x, Repression, 3\nNA, y, Unknown, 4\n",
    "headed.TRRUST": "TF\tTarget\tRegulation\nNA\tx\tActivation\n"
    "nan\tx\tRepression\nNA\ty\tUnknown\n",
    "decoupler": "source,target,weight\nNA,x,1\nnan,x,-0.5\nNA,y,0\n",
    "old.decoupler": "source,confidence,target,mor\nNA,A,x,1\nnan,A,x,-1\nNA,A,y,0\n",
    "BEELINE": "Gene1,Gene2,Type\nNA,x,+\nnan,x,-\nNA,y,\n",
    "floats.BEELINE": "Gene1,Gene2,Type\nNA,x,1.0\nnan,x,-1.0\nNA,y,0.0\n",
    "planted": "source,target,sign\nNA,x,1\nnan,x,-1\nNA,y,0\n",
}


def signs(edges):
    return {(edge.source, edge.target): edge.sign for edge in edges.itertuples()}


@pytest.mark.parametrize("name", REFERENCES)
def test_signed_references_of_every_format_are_read(name, tmp_path):
    (tmp_path / "reference.txt").write_text(REFERENCES[name])
    found = open_reference_file(tmp_path / "reference.txt")
    assert signs(found.edges) == SIGNED
    assert found.format == name.split(".")[-1]
    assert found.curated == (found.format in {"TRRUST", "decoupler"})


@pytest.mark.parametrize("unknown", [None, float("nan"), 0.0])
def test_signs_of_a_parquet_file(unknown, tmp_path):
    table = pd.DataFrame(
        {"source": ["NA", "nan", "NA"], "target": ["x", "x", "y"], "sign": [1.0, -1.0, unknown]}
    )
    table.to_parquet(tmp_path / "truth.parquet")
    assert signs(open_reference_file(tmp_path / "truth.parquet").edges) == SIGNED
    table.assign(sign=unknown).to_parquet(tmp_path / "truth.parquet")
    assert set(open_reference_file(tmp_path / "truth.parquet").edges["sign"]) == {0}


def test_both_signs_make_none_and_a_known_sign_outweighs_an_unknown(tmp_path):
    rows = ["A,B,+", "A,B,-", "A,C,?", "A,C,-", "A,A,-", "A,A,+", "B,C,+", "B,C,+"]
    (tmp_path / "reference.csv").write_text("\n".join(["Gene1,Gene2,Type", *rows]))
    found = open_reference_file(tmp_path / "reference.csv")
    assert signs(found.edges) == {("A", "B"): 0, ("A", "C"): -1, ("B", "C"): 1}
    assert found.conflicts == 1


def test_a_column_cell_type_gives_each_type_its_edges(tmp_path):
    rows = ["A,B,1,NA", "A,B,-1,CD4/8 T", "A,C,1,NA", "A,A,1,NA", "A,C,1,NA"]
    (tmp_path / "truth.csv").write_text("\n".join(["source,target,sign,cell_type", *rows]))
    found = open_reference_file(tmp_path / "truth.csv")
    assert {label: signs(edges) for label, edges in found.by_type.items()} == {
        "NA": {("A", "B"): 1, ("A", "C"): 1},
        "CD4/8 T": {("A", "B"): -1},
    }
    assert signs(found.edges) == {("A", "B"): 0, ("A", "C"): 1} and found.conflicts == 1
    pd.read_csv(tmp_path / "truth.csv").drop(columns="cell_type").to_csv(
        tmp_path / "untyped.csv", index=False
    )
    assert open_reference_file(tmp_path / "untyped.csv").by_type == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "source,target,sign,cell_type\nA,B,1,T\nA,C,1,\n",
        "a,b\nx,y\n",
        "Gene1,Gene2,Type\nA,B,+\nA,C,up\n",
        "source,target,weight\nA,B,high\n",
        "source,target,sign\nA,B,0.5\n",
        "Gene1,Gene2\nR1,G17,+\n",
    ],
)
def test_a_file_without_a_reference_is_refused_in_one_sentence(text, tmp_path):
    (tmp_path / "reference.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        open_reference_file(tmp_path / "reference.csv")
    assert "reference.csv" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.skipif("GRN_BENCHMARK_DATA" not in os.environ, reason="GRN_BENCHMARK_DATA is not set")
@pytest.mark.parametrize(
    ("name", "form", "counts"),
    [
        ("trrust_human.tsv", "TRRUST", {0: 3765, 1: 2927, -1: 1711}),
        ("sergio_ds1_network.csv", "BEELINE", {1: 179, -1: 79}),
        ("mdc/STRING_network.csv", "unsigned", {0: 4815}),
    ],
)
def test_published_references(name, form, counts):
    found = open_reference_file(Path(os.environ["GRN_BENCHMARK_DATA"]) / name)
    assert (found.format, pd.Series(found.edges["sign"]).value_counts().to_dict()) == (form, counts)
