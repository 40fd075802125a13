"""The report says first what is certain, holds what the run found, and labels stay labels."""

from __future__ import annotations

import base64
import html
import json
import re

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from grn.config.schema import Config
from grn.edges.signed_network import SignedNetwork, edge_list
from grn.features.findings.drivers import CELLS, OWN
from grn.features.findings.summary import (
    certain_sentence,
    certain_table,
    class_rows,
    edges_json,
    kept_edges,
)
from grn.features.report.page import CAUSED, CHANGES, FOLDS, write_report
from grn.features.report.write import edges_of_types

LABELS = ["T/<script>alert(1)</script>", "B & co"]
GENES = ["<b>R</b>", "R2", "x", "y"]
COLUMNS = ["source", "target", "weight", "q_value"]
EDGES = pd.DataFrame(
    [(GENES[0], "x", 0.9, 0.001), (GENES[0], "y", -0.7, 0.04), ("R2", "x", 0.3, 0.9)],
    columns=COLUMNS,
)
TYPED = pd.DataFrame(
    [
        (GENES[0], "x", 1.8, 0.01, LABELS[0]),
        ("R2", "y", -0.4, 0.03, LABELS[0]),
        ("R2", "x", -0.6, 0.7, LABELS[1]),
        ("R2", "y", 0.2, np.nan, LABELS[1]),  # too few cells for a q-value
    ],
    columns=[*COLUMNS, "cell_type"],
)
FOUND = pd.DataFrame(
    {
        "label": ["all cells", *LABELS],
        "edges": [7, 5, 0],
        "cells": [900, 890, 10],
        "borrowed": [0, 2, 3],
        "least_effect": [0.12, 0.13, np.nan],
    }
)
ACTIVITY = pd.DataFrame({"cell_type": LABELS, "regulator": "R2", "targets": 5, "cells": 9}).assign(
    activity_none=0.5, activity_some=2.0, effect=1.5, low=1.0, high=2.0, q_value=0.001, regulons=OWN
)
DOT = b"\x89PNG not really"


def signed_network(about: dict) -> SignedNetwork:
    """Weights over all cells, and of types twice as large and turned."""
    weight = np.zeros((4, 4))
    weight[:, :2] = [[0, -0.2], [0.1, 0], [0.9, 0.3], [-0.7, 0]]
    every = sparse.csr_matrix(weight)
    of_types = {LABELS[1]: -every, LABELS[0]: 2 * every}
    meaning = {"sign": "positive: raises", "orientation": "rows are targets", "states": "labels"}
    made = {"model_hash": "0123456789abcdef", "version": "9.9.9", "found": FOUND}
    return SignedNetwork(pd.Index(GENES), every, of_types, meaning | made | about)


def report(folder, *, edges=EDGES, data=None, about=None, of_types=None, **others) -> str:
    """The HTML of a report. data: further fields of the configuration. about: of the network.
    others: further tables.
    """
    network = signed_network(about or {})
    if of_types is None:
        tables = [
            kept_edges(edge_list(weights, network.genes)).assign(cell_type=label)
            for label, weights in network.by_type.items()
        ]
        of_types = pd.concat(tables, ignore_index=True)
    path = write_report(
        folder,
        config=Config.model_validate({"data": {"path": "cells.h5ad", **(data or {})}}),
        metrics={"accuracy": 0.8125, "auroc": float("nan"), "cell_type_loss": 1.0},
        per_class=pd.DataFrame({"class": LABELS, "f1": [0.625, 0.0], "cells": [8, 0]}),
        edges=edges,
        network=network,
        pictures={"training": DOT, "network": DOT},
        of_types=of_types,
        cells=900,
        **others,
    )
    return path.read_text("utf-8")


def rows(page: str) -> list[list[str]]:
    """The texts of all tables."""
    return [
        [
            html.unescape(re.sub(r"<[^>]*>", "", cell))
            for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)
        ]
        for row in re.findall(r"<tr>(.*?)</tr>", page)
    ]


def regulators(page: str) -> list[list[str]]:
    """Rows of the table of certain edges."""
    (body,) = re.findall(r'<table class="top">.*?<tbody>(.*?)</tbody>', page)
    return rows(body)


def embedded(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


def embedded_edges(page: str) -> pd.DataFrame:
    data = embedded(page)
    names = {"source": ("s", "genes"), "target": ("t", "genes"), "cell_type": ("k", "types")}
    found = {name: np.array(data[of])[data[key]] for name, (key, of) in names.items()}
    return pd.DataFrame(found | {"weight": data["w"], "q_value": data["q"]})


def first_screen(page: str) -> str:
    """The sentences above the pictures."""
    part = page[page.index("</h1>") : page.index('<div class="first">')]
    return html.unescape(re.sub(r"<[^>]*>", " ", part))


def test_the_page_opens_with_what_is_certain(tmp_path):
    page = html.unescape(report(tmp_path))
    numbers = re.findall(r"<div><strong>(.*?)</strong>", page)
    assert numbers[:3] == ["900", "7", "81%"], "cells, certain edges, right labels"
    parts = "7 edges are certain", "<img", "<h2", "<input", "Test cells</h2>"
    places = [page.index(part) for part in parts]
    assert places == sorted(places)


def test_the_tables_hold_what_was_found(tmp_path):
    found = rows(report(tmp_path, of_types=TYPED))
    assert ["accuracy", "0.812"] in found and not any("AUROC" in row[0] for row in found)
    assert [LABELS[0], "0.625", "8"] in found
    assert [LABELS[1], "-", "0"] in found, "no test cell, no F1"
    assert ["all cells", "900", "7", "0", "0.12"] in found
    assert [LABELS[1], "10", "0", "3", "none"] in found


def test_markers_are_the_genes_furthest_above_all_other_types():
    levels = pd.DataFrame(
        [[3.0, 2, 1, 0], [1, 1.5, 0.9, 2]], index=["A", "B"], columns=list("wxyz")
    )
    per_class = pd.DataFrame({"class": ["A", "B", "C"], "f1": [0.5, 1, 0], "cells": [4, 2, 0]})
    assert [row[3] for row in class_rows(per_class, levels)] == ["w, x, y", "z", ""]


def test_regulators_are_those_of_certain_edges_with_their_q_values(tmp_path):
    assert regulators(report(tmp_path, of_types=TYPED)) == [
        ["all cells", "<b>R</b>", "x 0.001", "y 0.04"],
        [LABELS[0], "<b>R</b>", "x 0.01", ""],
        [LABELS[0], "R2", "", "y 0.03"],
    ]
    uncertain = {"edges": EDGES.assign(q_value=0.5), "of_types": TYPED.assign(q_value=0.5)}
    assert 'class="top"' not in report(tmp_path, **uncertain), "without one there is no ranking"


@pytest.mark.parametrize(
    ("values", "sizes", "meaning"),
    [
        ("counts", ["x x1.32 (1.23 to 1.41) 0.001", "y x0.5 (0.381 to 0.656) 0.04"], FOLDS),
        ("expression", ["x +0.4 (0.302 to 0.498) 0.001", "y -1 (-1.39 to -0.608) 0.04"], CHANGES),
    ],
)
def test_certain_edges_have_sizes_in_the_unit_of_the_values(tmp_path, values, sizes, meaning):
    """Fold changes of counts."""
    sized = EDGES.assign(effect=[0.4, -1.0, 2.0], effect_se=[0.05, 0.2, 1.0])
    page = report(tmp_path, edges=sized, data={"values": values})
    assert regulators(page)[0][2:] == sizes and html.escape(meaning) in page
    data = embedded(page)
    assert data["e"][:3] == [0.4, -1.0, None] and data["d"][:3] == [0.05, 0.2, None]
    assert data["fold"] == (values == "counts") and len(data["e"]) == len(data["w"])


def test_what_more_cells_would_show():
    found = FOUND.head(1).assign(edges=0, least_effect=0.2)
    said = certain_sentence({"found": found})
    assert "With 900 cells, only correlations above 0.20" in said
    assert "about 4,000 cells are needed" in said, "(0.2 / 0.1)^2 times as many"
    assert "needed" not in certain_sentence({"found": found.assign(least_effect=0.08)})
    both = pd.concat([found, found.assign(label="B", edges=2)])
    assert "In cells of one kind by themselves: B 2." in certain_sentence({"found": both})


def test_effects_of_interventions_come_first(tmp_path):
    caused = EDGES.assign(caused=[0.5, np.nan, -1.5], caused_q=[0.03, np.nan, 0.001])
    caused = caused.assign(caused_low=[0.1, np.nan, -2], caused_high=[0.9, np.nan, -1], sd=0.1)
    page = report(tmp_path, edges=caused)
    assert html.unescape(page).index(CAUSED) < page.index('class="top"')
    found = rows(page)
    place = found.index(["regulator", "target", "effect", "from", "to", "its q", "weight", "q"])
    assert found[place + 1] == ["R2", "x", "-1.50", "-2.00", "-1.00", "0.001", "+0.3", "0.9"]


def test_certain_activities_are_listed(tmp_path):
    table = ACTIVITY.assign(q_value=[0.001, 0.2], regulons="collectri")
    page = report(tmp_path, activity=table)
    found = [row[:2] for row in rows(page)]
    assert [LABELS[0], "R2"] in found and [LABELS[1], "R2"] not in found
    assert "Candidates of some against none: R2 (+0.8)" in page, "the mean over both types"


def test_the_first_screen_says_what_may_be_an_artefact_and_what_would_help(tmp_path):
    said = first_screen(report(tmp_path, activity=ACTIVITY.assign(programme="")))
    assert said.index("some against none: R2 (+1.5)") < said.index("7 edges are certain")
    assert CELLS in said and "--regulons collectri" in said and "common programme" not in said
    ribosomal = EDGES.assign(target=["RPL3", "RPS2", "x"])
    said = first_screen(
        report(tmp_path, edges=ribosomal, activity=ACTIVITY.assign(programme="ribosomal"))
    )
    assert "Of 2 certain edges, 2 (100 %) have a target of a common programme" in said
    assert "R2 (ribosomal)" in said and "R2 (+1.5)" not in said
    about = {"parameters": {"donors": 4}, "hint": "The column 'stim' seems to hold conditions."}
    said = first_screen(report(tmp_path, data={"group_key": "donor"}, about=about))
    assert "4 donors or batches" in said and about["hint"] in said and CELLS not in said


def test_genes_of_a_common_programme_are_marked(tmp_path):
    page = report(tmp_path, edges=EDGES.assign(target=["Rpl3", "y", "FOS"]))
    assert embedded(page)["programmes"] == {"FOS": "immediate-early", "Rpl3": "ribosomal"}
    assert 'class="gene common" title="ribosomal" data-gene="Rpl3"' in page


def test_the_page_agrees_with_the_tables_of_types(tmp_path):
    """Its regulators, and the edges that it embeds, are those of edges_by_type.parquet."""
    dice = np.random.default_rng(0)
    pairs = [(f"r{n}", f"g{m}", label) for label in LABELS for n in range(6) for m in range(40)]
    table = pd.DataFrame(pairs, columns=["source", "target", "cell_type"])
    table["weight"], table["q_value"] = dice.normal(size=480), dice.uniform(size=480) ** 4
    table = table.sort_values("weight", key=abs, ascending=False)
    table.to_parquet(tmp_path / "edges_by_type.parquet")
    of_types = edges_of_types(tmp_path / "edges_by_type.parquet")
    page = report(tmp_path / "page", of_types=of_types)
    sure = table[table["q_value"] <= 0.05].sort_values("q_value")
    both = embedded_edges(page).merge(sure, on=["source", "target", "cell_type"])
    assert len(both) == len(sure)
    for label in LABELS:
        own = sure.loc[sure["cell_type"] == label, "source"]
        *shown, left = [row[1] for row in regulators(page) if row[0] == label]
        assert shown == list(own.unique()[:5])
        assert left == f"1 more regulators with {(own == own.unique()[5]).sum()} edges: certain.csv"


def test_labels_and_genes_are_escaped_and_the_page_needs_nothing_else(tmp_path):
    page = report(tmp_path)
    assert page.count("<script") == 2 and "<b>R" not in page  # the data and the page's own code
    assert "\\u003cscript\\u003ealert(1)" in page and html.escape(LABELS[0]) in page
    assert not re.search(r'(src|href)="(?!data:|#)|http|@import|url\(', page)
    assert re.findall(r'href="#([^"]*)"', page) == re.findall(r'<h2 id="([^"]*)"', page)
    images = re.findall(r'src="data:image/png;base64,([^"]*)"', page)
    assert [base64.b64decode(image) for image in images] == [DOT, DOT]


def test_the_page_holds_the_edges_for_its_table_and_network(tmp_path):
    page = report(tmp_path)
    assert embedded(page)["types"] == ["all cells", *LABELS[::-1]] and embedded(page)["signed"]
    found = embedded_edges(page).query("cell_type == 'all cells'")[COLUMNS]
    pd.testing.assert_frame_equal(found.reset_index(drop=True), EDGES, check_dtype=False)


def test_certain_edges_are_never_left_out_for_stronger_ones_of_a_target(monkeypatch):
    weights = [0.9, -0.8, 0.7, 0.6, 0.5, -0.4, 0.0]
    table = pd.DataFrame({"source": [f"R{n}" for n in range(7)], "target": "x", "weight": weights})
    assert kept_edges(table, 2)["weight"].tolist() == [0.9, -0.8, 0.7, -0.4]
    table["q_value"] = [0.9, 0.9, 0.9, 0.9, 0.01, 0.9, 0.01]
    assert kept_edges(table, 2)["weight"].tolist() == [0.9, -0.8, 0.7, 0.5, -0.4]
    monkeypatch.setattr("grn.features.findings.summary.MOST", 3)
    edges = pd.DataFrame({"source": [*"ABAB"], "target": [*"xxyz"], "weight": [0.9, 0.8, 0.2, 0.1]})
    for q_value, kept in ((0.9, [0.9, 0.2, 0.1]), (0.04, [0.9, 0.8, 0.2])):
        of_q = edges.assign(q_value=[0.9, q_value, 0.9, 0.9])
        text, _ = edges_json(of_q, of_q.head(0).assign(cell_type=""), signed=True)
        assert json.loads(text)["w"] == kept, "the strongest of each target before a second one"


def test_uncertain_edges_of_genes_that_are_hardly_seen_together_are_left_out():
    edges = pd.DataFrame({"source": "R", "target": [*"abc"], "weight": 1.0, "cells": [9, 10, 3]})
    edges["q_value"] = [0.9, 0.9, 0.01]
    none = edges.head(0).assign(cell_type="")
    text, count = edges_json(edges, none, signed=True, genes=[*"abcz", "R"])
    data = json.loads(text)
    assert count == 2 and data["genes"] == ["R", "b", "c"] and data["others"] == ["a", "z"]


def test_the_table_for_a_paper_has_the_certain_edges_of_all_cells_first():
    edges = pd.DataFrame({"source": [*"aba"], "target": [*"bac"], "weight": [0.5, -0.2, 0.9]})
    of_types = edges.assign(cell_type=["B", "A", "A"], q_value=[0.001, 0.03, 0.9])
    table = certain_table(edges.assign(q_value=[0.04, 0.01, 0.2]), of_types)
    found = list(zip(table["source"], table["cell_type"], strict=True))
    assert found == [("b", "all cells"), ("a", "all cells"), ("a", "B"), ("b", "A")]
    assert certain_table(edges.assign(q_value=1.0), of_types.head(0)).empty
