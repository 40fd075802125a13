"""Every format opens in the program that it is for, and reads back equal."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest

from grn import read_network
from grn.edges.choose import ChosenEdges, choose
from grn.edges.formats import FORMATS, refuse_output, write_file
from grn.edges.signed_network import edge_list, open_network
from grn.runtime.errors import ConfigError, DataError, RunFolderError

# Names that XML, JSON and tables have to quote.
GENES = ("NKX2-5", "HLA-DRA", "A&B", '"q"', "<x>", "x,y", "β2", "lone")
ABOUT = {"sign": "positive: raises", "dataset_id": "cells"}


@pytest.fixture
def chosen() -> ChosenEdges:
    """Edges of three regulators, two of which regulate each other; one number is not known of one
    edge.
    """
    generator = np.random.default_rng(0)
    pairs = [(source, target) for source in GENES[:3] for target in GENES[:-1] if source != target]
    edges = pd.DataFrame(pairs, columns=["source", "target"])
    edges["weight"] = generator.normal(size=len(edges)).astype(np.float32)
    edges["sd"] = edges["weight"].abs() / 3
    edges["programme"] = np.where(edges["target"] == "β2", "heat & shock", "")
    edges["between"] = np.float32(0.5)
    edges.loc[2, "between"] = np.nan
    edges["confidence"] = generator.random(len(edges)).astype(np.float32)
    return choose(edges, GENES, ABOUT, {})


def genesig():
    """The module of ctxcore (a part of pySCENIC) that reads gene sets, by its file: the package
    itself needs pkg_resources, which newer setuptools lack.
    """
    package = find_spec("ctxcore")
    if package is None:
        pytest.skip("ctxcore is not installed")
    spec = spec_from_file_location("ctxcore_genesig", Path(package.origin).with_name("genesig.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.GeneSignature


def written(chosen, name, folder):
    path = folder / f"network{FORMATS[name].ending}"
    write_file(chosen, path, name)
    return path


def same_edges(found: pd.DataFrame, chosen: ChosenEdges, columns=("source", "target", "weight")):
    """The rows in the same order, numbers exactly equal."""
    expected = chosen.edges[[*columns]].reset_index(drop=True)
    found = found[[*columns]].astype(expected.dtypes.to_dict())
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


def test_tables_hold_every_column(chosen, tmp_path):
    same_edges(pd.read_parquet(written(chosen, "parquet", tmp_path)), chosen, (*chosen.edges,))
    found = pd.read_csv(written(chosen, "csv", tmp_path), float_precision="round_trip")
    same_edges(found.fillna({"programme": ""}), chosen, (*chosen.edges,))


def test_decoupler_reads_back(chosen, tmp_path):
    """decoupler's univariate linear model runs on it, and finds the regulator that was raised."""
    decoupler = pytest.importorskip("decoupler")
    net = pd.read_csv(written(chosen, "decoupler", tmp_path), float_precision="round_trip")
    assert list(net) == ["source", "target", "weight"]
    same_edges(net, chosen)
    of_first = net[net["source"] == "A&B"].set_index("target")["weight"]
    noise = np.random.default_rng(1).normal(size=(4, len(GENES)))
    cells = pd.DataFrame(noise, columns=list(GENES), index=list("abcd"))
    cells.loc["a", of_first.index] += 20 * of_first
    scores, _ = decoupler.mt.ulm(cells, net)
    assert scores.idxmax(axis=1)["a"] == "A&B" and set(scores) == set(GENES[:3])


def test_beeline_reads_back(chosen, tmp_path):
    """As BEELINE's evaluation reads rankedEdges.csv."""
    found = pd.read_csv(
        written(chosen, "beeline", tmp_path), sep="\t", header=0, float_precision="round_trip"
    )
    assert list(found) == ["Gene1", "Gene2", "EdgeWeight"]
    same_edges(found.set_axis(["source", "target", "weight"], axis=1), chosen)


def test_pyscenic_reads_back(chosen, tmp_path):
    """Read as pySCENIC 0.12.1 does (cli/utils.load_adjacencies); its column `regulation` has the
    sign.
    """
    found = pd.read_csv(
        written(chosen, "pyscenic", tmp_path),
        sep="\t",
        dtype={0: str, 1: str, 2: np.float64},
        keep_default_na=False,
        float_precision="round_trip",
    )
    assert list(found) == ["TF", "target", "importance", "regulation", "rho"]
    assert set(found["regulation"]) == {-1, 1} and (found["importance"] > 0).all()
    found["weight"] = found["importance"] * found["regulation"]
    same_edges(found.rename(columns={"TF": "source"}), chosen)
    np.testing.assert_array_equal(found["rho"], found["weight"])


def test_gmt_reads_back(chosen, tmp_path):
    """Read by pySCENIC's own reader."""
    sets = genesig().from_gmt(str(written(chosen, "gmt", tmp_path)))
    edges = chosen.edges.assign(sign=np.where(chosen.edges["weight"] > 0, "+", "-"))
    expected = {
        f"{source}({sign})": list(of)
        for (source, sign), of in edges.groupby(["source", "sign"], sort=False)["target"]
    }
    assert {each.name: list(each.genes) for each in sets} == expected and len(sets) == 5


@pytest.mark.parametrize("name", ["graphml", "cytoscape"])
def test_graphs_hold_what_is_known_of_genes_and_edges(name, chosen, tmp_path):
    """A number that is NaN is left out, and so is the programme where the target has none."""
    networkx = pytest.importorskip("networkx")
    path = written(chosen, name, tmp_path)
    if name == "graphml":
        graph = networkx.read_graphml(path)
        assert {gene for gene, of in graph.nodes(data=True) if of["regulator"]} == {*GENES[:3]}
    else:
        graph = networkx.cytoscape_graph(json.loads(path.read_text("utf-8")))
    assert graph.is_directed() and set(graph) == set(GENES) - {"lone"}
    expected = chosen.edges.set_index(["source", "target"]).to_dict("index")
    assert set(graph.edges) == set(expected)
    for source, target, about in graph.edges(data=True):
        edge = expected[source, target]
        numbers = {each: edge[each] for each in chosen.numbers if not np.isnan(edge[each])}
        assert {each: about[each] for each in chosen.numbers if each in about} == numbers
        assert about.get("programme", "") == edge["programme"]
        if name == "cytoscape":
            assert about["interaction"] == ("raises" if about["weight"] > 0 else "lowers")


def test_h5ad_reads_back(chosen, tmp_path):
    """As any network.h5ad, by us and by anndata."""
    path = written(chosen, "h5ad", tmp_path)
    network = open_network(path)
    same_edges(edge_list(network.weights, network.genes), chosen)
    assert network.signed and not network.by_type
    adata = anndata.read_h5ad(path)
    assert list(adata.var_names) == list(GENES)
    assert list(adata.var_names[adata.var["is_regulator"]]) == list(GENES[:3])
    for edge in chosen.edges.itertuples():
        row, column = GENES.index(edge.target), GENES.index(edge.source)
        assert adata.varp["grn"][row, column] == np.float32(edge.weight)


def test_genernib_reads_back(chosen, tmp_path, monkeypatch):
    """The slots of the task's schema (file_prediction), with weights as text as its own methods
    write them, and as many edges as its metrics read, the strongest.
    """
    monkeypatch.setattr("grn.edges.formats.GENERNIB", 5)
    uns = anndata.read_h5ad(written(chosen, "genernib", tmp_path)).uns
    assert (uns["dataset_id"], uns["method_id"]) == ("cells", "grn")
    prediction, size = pd.DataFrame(uns["prediction"]), chosen.edges["weight"].abs()
    strongest = chosen.edges.loc[size.nlargest(5).index]
    assert list(prediction) == ["source", "target", "weight"]
    assert list(prediction["target"]) == list(strongest["target"])
    np.testing.assert_allclose(prediction["weight"].astype(float), strongest["weight"], rtol=1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_a_network_without_signs_says_nothing_of_them(name, chosen, tmp_path):
    unsigned = replace(chosen, about={"sign": "none: not identified"})
    path = tmp_path / f"network{FORMATS[name].ending}"
    if name == "gmt":
        with pytest.raises(DataError, match="mean nothing"):
            write_file(unsigned, path, name)
        assert not path.exists()
        return
    write_file(unsigned, path, name)
    text = path.read_bytes()
    assert b"raises" not in text and b"regulation\t" not in text


def test_names_end_as_the_program_expects_and_no_file_is_replaced(tmp_path):
    (tmp_path / "net.csv").touch()
    for name, output, error, field in (
        ("pyscenic", "net.csv", ConfigError, "output"),
        ("loom", "net.loom", ConfigError, "format"),
        ("csv", "net.csv", RunFolderError, "output"),
    ):
        with pytest.raises(error) as caught:
            refuse_output(name, tmp_path / output)
        assert caught.value.field == field


def test_a_spreadsheet_runs_no_name_of_a_csv(chosen, tmp_path):
    """`=cmd|' /C calc'!A0` and the like are written as text, and read back as they are; so is an
    empty `between`.
    """
    names = {"A&B": "=1+2", "x,y": "@SUM(A1)", "β2": "+x", "<x>": "-x"}
    evil = replace(chosen, edges=chosen.edges.replace({"source": names, "target": names}))
    path = tmp_path / "net.csv"
    write_file(evil, path, "csv")
    cells = [
        cell
        for row in csv.reader(path.read_text(encoding="utf-8").splitlines())
        for cell in row[:2]
    ]
    assert not [cell for cell in cells if cell[0] in "=+-@"] and "'=1+2" in cells
    same_edges(read_network(path), evil, ("source", "target", "weight", "sd", "between"))
