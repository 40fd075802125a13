"""The report holds what the run found, and labels stay labels."""

from __future__ import annotations

import base64
import html
import json
import re

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from grn.analysis.report import CONFIDENCE, DEFINITION, UNKNOWN, write_report
from grn.analysis.summary import edge_texts, edges_json, is_composition, strongest_of_targets
from grn.config.schema import Config
from grn.networks.run_files import network_anndata, write_network
from grn.networks.signed_network import edge_list, open_network
from grn.networks.weights import Network
from grn.regulation.states import States

LABELS = ["T/<script>alert(1)</script>", "B & co"]
GENES = ["<b>R</b>", "R2", "x", "y"]


DOT = b"\x89PNG not really"


def network_file(folder, *, labelled=True):
    weight = np.array([[0, -0.2], [0.1, 0], [0.9, 0.3], [-0.7, 0.0]], dtype=np.float32)

    def of(values, **types):
        return Network(values, *[np.full((4, 2), 0.75, dtype=np.float32)] * 5, **types)

    network = of(weight, of_states={LABELS[0]: of(weight * 2), LABELS[1]: of(-weight)} if labelled else {})
    labels = States(np.eye(2, dtype=np.float32)[[0, 1, 1]], tuple(LABELS), "labels")
    one = States(np.ones((3, 1), np.float32), ("all cells",), "one")
    found = pd.DataFrame({"label": np.array(["all cells", *LABELS], dtype=object), "edges": [7, 5, 0]})
    found.index = pd.Index(["0", "1", "2"], dtype=object)
    adata = network_anndata(
        network,
        genes=GENES,
        regulators=np.array([0, 1]),
        states=labels if labelled else one,
        multiplicity=sparse.csr_matrix(np.ones((3, 4))),
        top_k=None,
        about={"model_hash": "0123456789abcdef", "version": "9.9.9"} | ({"found": found} if labelled else {}),
    )
    edges = pd.DataFrame(
        [(GENES[0], "x", 0.9, 0.75), (GENES[0], "y", -0.7, 0.75), ("R2", "x", 0.3, 0.75)],
        columns=["source", "target", "weight", "confidence"],
    )
    write_network(folder, adata, edges, edges.assign(cell_type="").head(0))
    return open_network(folder / "network.h5ad"), edges


def strongest_of_types(network) -> pd.DataFrame:
    tables = [edge_list(w, network.genes).assign(cell_type=label) for label, w in network.by_type.items()]
    empty = edge_list(network.weights, network.genes).head(0).assign(cell_type="")
    return pd.concat([empty, *map(strongest_of_targets, tables)], ignore_index=True)


def report(folder, *, labelled=True, pictures=None, beside=None, without=(), of_types=None) -> str:
    """beside: further columns of the edges.   without: columns that they lack."""
    network, edges = network_file(folder, labelled=labelled)
    edges = edges.assign(**(beside or {})).drop(columns=list(without))
    per_class = pd.DataFrame({"class": LABELS, "f1": [0.625, 0.0], "cells": [8, 0]}) if labelled else pd.DataFrame()
    path = write_report(
        folder,
        config=Config.model_validate({"data": {"path": "cells.h5ad"}, "trainer": {"seed": 4711}}),
        metrics={"accuracy": 0.8125, "auroc": float("nan"), "cell_type_loss": 1.0} if labelled else {"r2": 0.25},
        per_class=per_class,
        edges=edges,
        network=network,
        pictures={"training": DOT, "edges": DOT} if pictures is None else pictures,
        of_types=strongest_of_types(network) if of_types is None else of_types,
    )
    assert path == folder / "report.html"
    return path.read_text("utf-8")


def rows(page: str) -> list[list[str]]:
    found = re.findall(r"<tr>(.*?)</tr>", page)
    return [[html.unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)] for row in found]


def test_the_tables_hold_what_was_found(tmp_path):
    found = rows(report(tmp_path))
    assert ["accuracy", "0.812"] in found
    assert [LABELS[0], "0.625", "8"] in found
    assert [LABELS[1], "-", "0"] in found  # no test cell, no F1
    assert ["<b>R</b>", "x", "+0.900", "0.75"] in found
    assert ["<b>R</b>", "y", "-0.700", "0.75"] in found
    assert ["<b>R</b>", "x", "+1.800"] in found  # of the first type
    assert ["<b>R</b>", "x", "-0.900"] in found  # of the second
    assert not any("AUROC" in row[0] for row in found)  # not measured


def test_labels_and_genes_are_escaped(tmp_path):
    page = report(tmp_path)
    assert page.count("<script") == 2 and "<b>R" not in page  # the data and the page's own code
    assert "\\u003cscript\\u003ealert(1)" in page
    assert html.escape(LABELS[0]) in page and html.escape(LABELS[1]) in page


def test_the_page_needs_nothing_else(tmp_path):
    page = report(tmp_path)
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "http" not in page and "@import" not in page and "url(" not in page
    links = re.findall(r'href="#([^"]*)"', page)
    assert links and links == re.findall(r'<h2 id="([^"]*)"', page)
    images = re.findall(r'src="data:image/png;base64,([^"]*)"', page)
    assert [base64.b64decode(image) for image in images] == [DOT, DOT]


def test_the_page_says_what_weights_and_confidences_are(tmp_path):
    page = html.unescape(report(tmp_path))
    assert DEFINITION in page and "up-regulations" in page
    assert page.count(f"Confidence: {CONFIDENCE}") == 2, "beside the filters and the evidence"
    page = html.unescape(report(tmp_path / "without", without=["confidence"]))
    assert page.count(f"Confidence: {UNKNOWN}") == 2 and CONFIDENCE not in page


APART = {
    "sd": [0.3, 0.2, 0.0],
    "between": [0.9, 0.1, -0.8],
    "confidence": [0.99, 0.55, 0.55],
    "q_value": [0.01, 0.9, 0.95],
}


def test_the_page_tells_weights_from_evidence_between_states(tmp_path):
    table = pd.DataFrame({"source": ["R2"], "target": ["y"], "weight": [-0.25], "confidence": [0.875]})
    table = table.assign(sd=0.125, between=0.75, q_value=0.002, cell_type=LABELS[0])
    page = report(tmp_path, beside=APART, of_types=table)
    found = rows(page)
    assert ["regulator", "target", "weight", "sd", "between", "confidence", "q", "note"] in found
    assert ["<b>R</b>", "x", "+0.900", "0.300", "+0.90", "0.99", "0.01", ""] in found
    assert ["R2", "x", "+0.300", "0.000", "-0.80", "0.55", "0.95", "composition"] in found
    assert ["R2", "y", "-0.250", "0.125", "+0.75", "0.88", "0.002", ""] in found
    assert ["all cells", "7"] in found and [LABELS[0], "5"] in found and [LABELS[1], "0"] in found


def test_edges_without_states_are_not_told_apart(tmp_path):
    one_state = APART | {"between": [0.0, 0.0, 0.0]}
    page = report(tmp_path, labelled=False, beside=one_state)
    assert ["regulator", "target", "weight", "sd", "confidence", "q"] in rows(page)
    assert not any("composition" in row for row in rows(page)) and "with the note composition" not in page
    assert "no states were found" in page and "Cell types</h2>" not in page
    assert ["R2 of the genes, from their regulators", "0.250"] in rows(page)


@pytest.mark.parametrize(
    ("confidence", "between", "expected"),
    [(0.55, 0.9, True), (0.55, -0.9, True), (0.9, 0.9, False), (0.55, 0.2, False)],
)
def test_composition_is_levels_that_differ_together_and_a_weight_that_is_uncertain(confidence, between, expected):
    edges = pd.DataFrame({"source": ["A"], "target": ["x"], "weight": [0.5], "between": [between]})
    edges["confidence"] = confidence
    assert is_composition(edges).tolist() == [expected]
    columns, rows = edge_texts(edges)
    assert columns[-1] == "note" and rows[0][-1] == ("composition" if expected else "")


def embedded(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_holds_the_edges_for_its_table_and_network(tmp_path):
    data = embedded(report(tmp_path, beside=APART))
    assert data["types"] == ["all cells", *LABELS[::-1]] and data["signed"] is True
    names = [(data["genes"][s], data["genes"][t]) for s, t in zip(data["s"], data["t"], strict=True)]
    overall = [n for n, k in enumerate(data["k"]) if k == 0]
    assert [names[n] for n in overall] == [("<b>R</b>", "x"), ("<b>R</b>", "y"), ("R2", "x")]
    assert [data["w"][n] for n in overall] == [0.9, -0.7, 0.3]
    assert [data["q"][n] for n in overall] == [0.01, 0.9, 0.95] and [data["n"][n] for n in overall] == [0, 0, 1]


def test_the_edges_that_are_left_out_are_those_that_a_target_has_stronger_ones_than(monkeypatch):
    monkeypatch.setattr("grn.analysis.summary.MOST", 3)
    edges = pd.DataFrame(
        {"source": ["A", "B", "A", "B"], "target": ["x", "x", "y", "z"], "weight": [0.9, 0.8, 0.2, 0.1]}
    )
    weights = [0.9, -0.8, 0.7, 0.6, 0.5, -0.4, 0.0]
    table = pd.DataFrame({"source": [f"R{n}" for n in range(7)], "target": "x", "weight": weights})
    assert strongest_of_targets(table, 2)["weight"].tolist() == [0.9, -0.8, 0.7, -0.4]
    text, count = edges_json(edges, edges.head(0).assign(cell_type=""), signed=True)
    data = json.loads(text)
    assert count == 3 and data["w"] == [0.9, 0.2, 0.1], "each target's strongest comes before a second one"


def test_top_regulators_come_first_and_no_regulator_fills_a_type(tmp_path):
    page = report(tmp_path)
    assert page.index("Top regulators of each cell type</h2>") < page.index("Edges and network</h2>")
    cards = re.findall(r'<div class="card"><h3>(.*?)</h3>(.*?)</div>', page)
    assert [html.unescape(label) for label, _ in cards] == LABELS[::-1]
    for _, card in cards:
        regulators = re.findall(r"<th><span[^>]*>(.*?)</span></th>", card)
        assert [html.unescape(name) for name in regulators] == ["<b>R</b>", "R2"]
