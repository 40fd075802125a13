"""References of every format, and files that hold no reference."""

import os
from pathlib import Path

import pandas as pd
import pytest

from grn.analysis.network_files import open_reference_file
from grn.cells.simulated import simulate
from grn.config.schema import Simulation
from grn.errors import DataError

SIGNED = {("NA", "x"): 1, ("nan", "x"): -1, ("NA", "y"): 0}
TEXTS = {
    "TRRUST": "NA\tx\tActivation\t1;2\nnan\tx\tRepression\t3\nNA\ty\tUnknown\t4\n",
    "numbered.TRRUST": "0\t1\t2\t3\nNA\tx\tActivation\t1;2\nnan\tx\tRepression\t3\nNA\ty\tUnknown\t4\n",
    "spaced.TRRUST": "NA, x, Activation, 1\nnan, x, Repression, 3\nNA, y, Unknown, 4\n",
    "headed.TRRUST": "TF\tTarget\tRegulation\nNA\tx\tActivation\nnan\tx\tRepression\nNA\ty\tUnknown\n",
    "decoupler": "source,target,weight\nNA,x,1\nnan,x,-0.5\nNA,y,0\n",
    "old.decoupler": "source,confidence,target,mor\nNA,A,x,1\nnan,A,x,-1\nNA,A,y,0\n",
    "BEELINE": "Gene1,Gene2,Type\nNA,x,+\nnan,x,-\nNA,y,\n",
    "floats.BEELINE": "Gene1,Gene2,Type\nNA,x,1.0\nnan,x,-1.0\nNA,y,0.0\n",
    "planted": "source,target,sign\nNA,x,1\nnan,x,-1\nNA,y,0\n",
}


def signs(edges):
    return {(edge.source, edge.target): edge.sign for edge in edges.itertuples()}


@pytest.mark.parametrize("name", TEXTS)
def test_signed_references_of_every_format_are_read(name, tmp_path):
    (tmp_path / "reference.txt").write_text(TEXTS[name])
    found = open_reference_file(tmp_path / "reference.txt")
    assert signs(found.edges) == SIGNED
    assert found.format == name.split(".")[-1]
    assert found.curated == (found.format in {"TRRUST", "decoupler"})


@pytest.mark.parametrize("unknown", [None, float("nan"), 0.0])
def test_signs_of_a_parquet_file(unknown, tmp_path):
    table = pd.DataFrame({"source": ["NA", "nan", "NA"], "target": ["x", "x", "y"], "sign": [1.0, -1.0, unknown]})
    table.to_parquet(tmp_path / "truth.parquet")
    assert signs(open_reference_file(tmp_path / "truth.parquet").edges) == SIGNED
    table.assign(sign=unknown).to_parquet(tmp_path / "truth.parquet")
    assert set(open_reference_file(tmp_path / "truth.parquet").edges["sign"]) == {0}


@pytest.mark.parametrize("header", ["Gene1,Gene2", "source,target"])
def test_references_without_signs(header, tmp_path):
    (tmp_path / "reference.csv").write_text(f"{header}\nNA,x\nnan,x\n")
    assert set(open_reference_file(tmp_path / "reference.csv").edges["sign"]) == {0}


def test_both_signs_make_none_and_a_known_sign_outweighs_an_unknown(tmp_path):
    rows = ["A,B,+", "A,B,-", "A,C,?", "A,C,-", "A,A,-", "A,A,+", "B,C,+", "B,C,+"]
    (tmp_path / "reference.csv").write_text("\n".join(["Gene1,Gene2,Type", *rows]))
    found = open_reference_file(tmp_path / "reference.csv")
    assert signs(found.edges) == {("A", "B"): 0, ("A", "C"): -1, ("B", "C"): 1}
    assert found.conflicts == 1


def test_the_truth_of_simulated_cells(tmp_path):
    truth = simulate(Simulation(cells=10, genes=8, regulators=3)).uns["truth"]
    truth.to_csv(tmp_path / "truth.csv", index=False)
    truth.to_parquet(tmp_path / "truth.parquet", index=False)
    for name in ("truth.csv", "truth.parquet"):
        found = open_reference_file(tmp_path / name)
        assert signs(found.edges) == signs(truth) and not found.curated


def test_a_column_cell_type_gives_each_type_its_edges(tmp_path):
    rows = ["A,B,1,NA", "A,B,-1,CD4/8 T", "A,C,1,NA", "A,A,1,NA", "A,C,1,NA"]
    (tmp_path / "truth.csv").write_text("\n".join(["source,target,sign,cell_type", *rows]))
    found = open_reference_file(tmp_path / "truth.csv")
    assert {label: signs(edges) for label, edges in found.by_type.items()} == {
        "NA": {("A", "B"): 1, ("A", "C"): 1},
        "CD4/8 T": {("A", "B"): -1},
    }
    assert signs(found.edges) == {("A", "B"): 0, ("A", "C"): 1} and found.conflicts == 1
    pd.read_csv(tmp_path / "truth.csv").drop(columns="cell_type").to_csv(tmp_path / "untyped.csv", index=False)
    assert open_reference_file(tmp_path / "untyped.csv").by_type == {}


def test_the_truth_of_simulated_types(tmp_path):
    config = Simulation(cells=30, genes=60, cell_types=3, type_specific=0.4, changed_signs=0.2, state=0.2)
    truth = simulate(config).uns["truth"]
    truth.to_csv(tmp_path / "truth.csv", index=False)
    found = open_reference_file(tmp_path / "truth.csv")
    assert set(found.by_type) == {"type 1", "type 2", "type 3"}
    for label, edges in found.by_type.items():
        assert signs(edges) == signs(truth[truth["cell_type"] == label])
    assert (found.edges["sign"] == 0).sum() == found.conflicts == pytest.approx(0.2 * len(found.edges), abs=1)


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
