"""The report says first what is certain, holds what the run found, and labels stay labels."""

from __future__ import annotations

import base64
import html
import json
import re

import numpy as np
import pandas as pd
from scipy import sparse

from grn.config.schema import Config
from grn.edges.signed_network import edge_list, open_network
from grn.edges.weights import Network
from grn.evidence.states import States
from grn.features.findings.drivers import CELLS, OWN
from grn.features.findings.known import beside_known
from grn.features.findings.summary import (
    both_ways,
    certain_sentence,
    certain_table,
    class_rows,
    edges_json,
    kept_edges,
)
from grn.features.report.page import CAUSED, CHANGES, DEFINITION, FOLDS, RATE, write_report
from grn.features.report.write import edges_of_types
from grn.networks.run_files import network_anndata, write_network

LABELS = ["T/<script>alert(1)</script>", "B & co"]
GENES = ["<b>R</b>", "R2", "x", "y"]


DOT = b"\x89PNG not really"


def network_file(folder, *, labelled=True):
    weight = np.array([[0, -0.2], [0.1, 0], [0.9, 0.3], [-0.7, 0.0]], dtype=np.float32)

    def of(values, **types):
        return Network(
            values, *[np.full((4, 2), 0.75, dtype=np.float32)] * 4, np.full((4, 2), 50), **types
        )

    network = of(
        weight, of_states={LABELS[0]: of(weight * 2), LABELS[1]: of(-weight)} if labelled else {}
    )
    labels = States(np.eye(2, dtype=np.float32)[[0, 1, 1]], tuple(LABELS), "labels")
    one = States(np.ones((3, 1), np.float32), ("all cells",), "one")
    found = pd.DataFrame(
        {"label": np.array(["all cells", *LABELS], dtype=object), "edges": [7, 5, 0]}
    )
    found = found.assign(
        cells=[900, 890, 10], borrowed=[0, 2, 3], least_effect=[0.12, 0.13, np.nan]
    )
    found.index = pd.Index(["0", "1", "2"], dtype=object)
    adata = network_anndata(
        network,
        genes=GENES,
        regulators=np.array([0, 1]),
        states=labels if labelled else one,
        multiplicity=sparse.csr_matrix(np.ones((3, 4))),
        top_k=None,
        about={"model_hash": "0123456789abcdef", "version": "9.9.9"}
        | ({"found": found} if labelled else {}),
    )
    edges = pd.DataFrame(
        [(GENES[0], "x", 0.9, 0.001), (GENES[0], "y", -0.7, 0.04), ("R2", "x", 0.3, 0.9)],
        columns=["source", "target", "weight", "q_value"],
    )
    write_network(folder, adata, edges, edges.assign(cell_type="").head(0))
    return open_network(folder / "network.h5ad"), edges


def strongest_of_types(network) -> pd.DataFrame:
    tables = [
        edge_list(w, network.genes).assign(cell_type=label) for label, w in network.by_type.items()
    ]
    empty = edge_list(network.weights, network.genes).head(0).assign(cell_type="")
    return pd.concat([empty, *map(kept_edges, tables)], ignore_index=True)


def report(
    folder,
    *,
    labelled=True,
    pictures=None,
    beside=None,
    without=(),
    of_types=None,
    values="counts",
    **others,
) -> str:
    """Return the HTML of a report.

    beside: further columns of the edges.
    without: columns that they lack.
    values: see data.values.
    others: further tables.
    """
    network, edges = network_file(folder, labelled=labelled)
    edges = edges.assign(**(beside or {})).drop(columns=list(without))
    per_class = (
        pd.DataFrame({"class": LABELS, "f1": [0.625, 0.0], "cells": [8, 0]})
        if labelled
        else pd.DataFrame()
    )
    path = write_report(
        folder,
        config=Config.model_validate(
            {"data": {"path": "cells.h5ad", "values": values}, "trainer": {"seed": 4711}}
        ),
        metrics={"accuracy": 0.8125, "auroc": float("nan"), "cell_type_loss": 1.0}
        if labelled
        else {"r2": 0.25},
        per_class=per_class,
        edges=edges,
        network=network,
        pictures={"training": DOT, "network": DOT} if pictures is None else pictures,
        of_types=strongest_of_types(network) if of_types is None else of_types,
        cells=900,
        **others,
    )
    assert path == folder / "report.html"
    return path.read_text("utf-8")


def rows(page: str) -> list[list[str]]:
    found = re.findall(r"<tr>(.*?)</tr>", page)
    return [
        [html.unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)]
        for row in found
    ]


def test_the_page_opens_with_what_is_certain(tmp_path):
    page = html.unescape(report(tmp_path))
    numbers = re.findall(r"<div><strong>(.*?)</strong> (.*?)</div>", page)
    assert numbers[:2] == [("900", "cells"), ("7", "certain edges, direct or indirect")]
    assert numbers[2][0] == "81%" and numbers[2][1].startswith(
        "of 8 test cells get their given label"
    )
    places = [
        page.index(text)
        for text in ("7 edges are certain", "<img", "<h2", "<input", "Test cells</h2>")
    ]
    assert places == sorted(places), "numbers, pictures, certain edges, all edges, test cells"
    assert RATE in page and DEFINITION in page and "edges_by_type.parquet" in page


TYPED = pd.DataFrame(
    [
        (GENES[0], "x", 1.8, 0.01, LABELS[0]),
        ("R2", "y", -0.4, 0.03, LABELS[0]),
        ("R2", "x", -0.6, 0.7, LABELS[1]),
        ("R2", "y", 0.2, np.nan, LABELS[1]),  # too few cells for a q-value
    ],
    columns=["source", "target", "weight", "q_value", "cell_type"],
)


def test_the_tables_hold_what_was_found(tmp_path):
    found = rows(report(tmp_path, of_types=TYPED))
    assert ["accuracy", "0.812"] in found
    assert [LABELS[0], "0.625", "8"] in found  # all levels are the same: there are no markers
    assert [LABELS[1], "-", "0"] in found  # no test cell, no F1
    assert not any("AUROC" in row[0] for row in found)  # not measured
    assert [
        "cells",
        "number",
        "certain edges",
        "certain over all cells alone",
        "least correlation that could be seen",
    ] in found
    assert ["all cells", "900", "7", "0", "0.12"] in found and [
        LABELS[1],
        "10",
        "0",
        "3",
        "none",
    ] in found


def test_markers_are_the_genes_furthest_above_all_other_types():
    levels = pd.DataFrame(
        [[3.0, 2, 1, 0], [1, 1.5, 0.9, 2]], index=["A", "B"], columns=list("wxyz")
    )
    per_class = pd.DataFrame({"class": ["A", "B", "C"], "f1": [0.5, 1, 0], "cells": [4, 2, 0]})
    assert class_rows(per_class, levels) == [
        ("A", "0.500", 4, "w, x, y"),
        ("B", "1.000", 2, "z"),
        ("C", "-", 0, ""),
    ]
    assert class_rows(pd.DataFrame()) == []  # of a run without cell types


def regulators(page: str) -> list[list[str]]:
    """Rows of the table of certain edges, as texts."""
    (body,) = re.findall(r'<table class="top">.*?<tbody>(.*?)</tbody>', page)
    cells = [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", body)
    ]
    return [[html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in cells]


def test_regulators_are_those_of_certain_edges_with_their_q_values(tmp_path):
    assert regulators(report(tmp_path, of_types=TYPED)) == [
        ["all cells", "<b>R</b>", "x 0.001", "y 0.04"],
        [LABELS[0], "<b>R</b>", "x 0.01", ""],
        [LABELS[0], "R2", "", "y 0.03"],
    ]
    many = pd.DataFrame(
        {"source": "R2", "target": [f"t{n}" for n in range(9)], "weight": 0.5, "q_value": 0.02}
    )
    page = report(tmp_path / "many", of_types=many.assign(cell_type=LABELS[1]))
    assert regulators(page)[-1][2].endswith("t5 0.02, 3 more")


SIZES = {"effect": [0.4, -1.0, 2.0], "effect_se": [0.05, 0.2, 1.0]}


def test_certain_edges_have_sizes_as_fold_changes(tmp_path):
    page = report(tmp_path, beside=SIZES, of_types=TYPED)
    assert regulators(page)[0][2:] == [
        "x x1.32 (1.23 to 1.41) 0.001",
        "y x0.5 (0.381 to 0.656) 0.04",
    ]
    assert regulators(page)[1] == [LABELS[0], "<b>R</b>", "x 0.01", ""], (
        "of a table without effects"
    )
    assert "raises the target" in page and "(fold change, q)" in page and html.escape(FOLDS) in page
    data = embedded(page)
    assert (
        data["fold"] and data["e"][:3] == [0.4, -1.0, None] and data["d"][:3] == [0.05, 0.2, None]
    )
    assert set(data["e"][3:]) == {None} and len(data["e"]) == len(data["w"])
    page = report(tmp_path / "plain")
    assert html.escape(FOLDS) not in page and "e" not in embedded(page), (
        "nothing is said of sizes that are not known"
    )


def test_of_values_that_are_no_counts_sizes_are_in_their_unit(tmp_path):
    page = report(tmp_path, beside=SIZES, values="expression")
    assert regulators(page)[0][2:] == [
        "x +0.4 (0.302 to 0.498) 0.001",
        "y -1 (-1.39 to -0.608) 0.04",
    ]
    assert (
        not embedded(page)["fold"]
        and html.escape(CHANGES) in page
        and "fold change" not in page.split("<script")[0]
    )


def test_without_a_certain_edge_there_is_no_ranking(tmp_path):
    page = report(tmp_path, beside={"q_value": 0.5}, of_types=TYPED.assign(q_value=0.5))
    assert 'class="top"' not in page
    page = html.unescape(
        report(tmp_path / "unknown", without=["q_value"], of_types=TYPED.drop(columns="q_value"))
    )
    assert 'class="top"' not in page and RATE not in page


def test_what_more_cells_would_show():
    found = pd.DataFrame(
        {"label": ["all cells"], "edges": [0], "cells": [900], "least_effect": [0.2]}
    )
    assert certain_sentence({"found": found}) == (
        "No edge is certain over all cells (q at most 0.05). With 900 cells, only correlations "
        "above 0.20 within a type could have been seen, as chance alone gives smaller ones; for "
        "those above 0.1, about 4,000 cells are needed."
    )
    assert certain_sentence({"found": found.assign(least_effect=0.08)}).endswith(
        "above 0.08 within a type could have been seen, as chance alone gives smaller ones."
    )
    assert certain_sentence({"found": found.assign(least_effect=np.nan)}).endswith(
        "(q at most 0.05)."
    )
    assert certain_sentence({"found": found.assign(edges=3)}).startswith(
        "3 edges are certain over all cells (q at most 0.05)"
    )
    types = found.assign(label="B", edges=2)
    alone = certain_sentence({"found": pd.concat([found, types], ignore_index=True)})
    assert "(q at most 0.05). By the cells of one type alone: B 2. With 900 cells" in alone


def test_effects_of_interventions_come_first(tmp_path):
    caused = {
        "caused": [0.5, np.nan, -1.5],
        "caused_low": [0.1, np.nan, -2],
        "caused_high": [0.9, np.nan, -1],
    }
    page = html.unescape(
        report(tmp_path, beside=caused | {"caused_q": [0.03, np.nan, 0.001], "sd": 0.1})
    )
    assert ("2", "certain effects of interventions") in re.findall(
        r"<div><strong>(.*?)</strong> (.*?)</div>", page
    )
    assert page.index(CAUSED) < page.index('class="top"')
    found = rows(page)
    place = found.index(["regulator", "target", "effect", "from", "to", "its q", "weight", "q"])
    assert found[place + 1] == ["R2", "x", "-1.50", "-2.00", "-1.00", "0.001", "+0.3", "0.9"]


def test_certain_activities_are_listed(tmp_path):
    table = pd.DataFrame(
        {"cell_type": LABELS, "regulator": "R2", "targets": 5, "cells": 9, "activity_others": 0.5}
    )
    table = table.assign(
        activity=2.0, effect=1.5, low=1.0, high=2.0, q_value=[0.001, 0.2], regulons="collectri"
    )
    between = table.rename(
        columns={"activity_others": "activity_none", "activity": "activity_some"}
    )
    page = report(tmp_path, activity=between)
    assert "Effect: the mean in some minus that in none" in page
    assert page.count("Candidates of some against none: R2 (+0.8), in 1 of 2 cell types") == 1, (
        "the mean over both"
    )
    page = report(tmp_path, activity=table)
    head = [
        "cell type",
        "regulator",
        "targets",
        "activity in others",
        "activity",
        "effect",
        "95 % interval",
        "q",
    ]
    found = rows(page)
    assert found[found.index(head) + 1][:2] == [LABELS[0], "R2"] and [LABELS[1], "R2"] not in [
        row[:2] for row in found
    ]
    assert "(collectri)" in page and "Cells are no replicates" in page


def first_screen(page: str) -> str:
    """The sentences above the pictures, as text."""
    return html.unescape(
        re.sub(r"<[^>]*>", " ", page[page.index("</h1>") : page.index('<div class="first">')])
    )


def test_the_first_screen_says_what_is_artefact_and_what_would_make_the_answer_better(tmp_path):
    table = pd.DataFrame(
        {"cell_type": LABELS, "regulator": "R2", "targets": 5, "cells": 9, "activity_none": 0.5}
    )
    table = table.assign(
        activity_some=2.0, effect=1.5, low=1.0, high=2.0, q_value=0.001, programme="", regulons=OWN
    )
    said = first_screen(report(tmp_path, activity=table))
    assert said.index("Candidates of some against none: R2 (+1.5)") < said.index(
        "7 edges are certain over all cells"
    )
    assert (
        CELLS in said
        and "grn report RUN --regulons collectri" in said
        and "common programme" not in said
    )
    ribosomal = report(tmp_path / "more", beside={"target": ["RPL3", "RPS2", "x"]}, activity=table)
    assert "Of 2 certain edges, 2 (100 %) have a target of a common programme" in first_screen(
        ribosomal
    )
    resting = first_screen(
        report(tmp_path / "resting", activity=table.assign(programme="ribosomal"))
    )
    assert "in one common programme: R2 (ribosomal)" in resting and "R2 (+1.5)" not in resting


def test_the_first_screen_names_donors_and_a_column_that_seems_to_hold_conditions(tmp_path):
    network, edges = network_file(tmp_path)
    network.about["parameters"] = {"donors": 4}
    network.about["hint"] = "The column 'stim' of obs (ctrl, stim) seems to hold conditions."
    config = Config.model_validate({"data": {"path": "cells.h5ad", "group_key": "donor"}})
    others = {
        "metrics": {},
        "per_class": pd.DataFrame(),
        "pictures": {},
        "of_types": strongest_of_types(network),
    }
    write_report(tmp_path, config=config, edges=edges, network=network, **others)
    said = first_screen((tmp_path / "report.html").read_text("utf-8"))
    assert "4 donors or batches (the column 'donor') are the units" in said and CELLS not in said
    assert "So few say little of other donors." in said and network.about["hint"] in said


def test_genes_of_a_common_programme_are_marked_and_the_table_of_edges_names_it(tmp_path):
    page = report(tmp_path, beside={"target": ["Rpl3", "y", "FOS"]})
    assert embedded(page)["programmes"] == {"FOS": "immediate-early", "Rpl3": "ribosomal"}
    assert (
        'class="gene common" title="ribosomal" data-gene="Rpl3"' in page
        and "Grey genes are of a common" in page
    )
    assert embedded(report(tmp_path / "none"))["programmes"] == {}


WORDS = "multiplicit|borrow|\\bstates?\\b|\\bmembers?\\b|identity token|penalt|layer ?0"


def test_words_of_the_method_stand_in_the_appendix_alone(tmp_path):
    page = report(tmp_path, of_types=TYPED)
    body = re.sub(
        r"<(script|style).*?</\1>", "", page[: page.index('<h2 id="appendix')], flags=re.DOTALL
    )
    assert not re.findall(WORDS, re.sub(r"<[^>]*>", " ", body), re.IGNORECASE)


def test_known_pairs_are_beside_the_certain_edges(tmp_path):
    pairs = pd.DataFrame(
        {"source": [*["<b>R</b>"] * 2, *"stuvw"], "target": list("xyzzzzz"), "weight": 1.0}
    )
    known = beside_known(
        TYPED.drop(columns="cell_type"), TYPED, pairs, [*"stuvw", "<b>R</b>", "R2"], list("xyz")
    )
    page = report(tmp_path, known=known)
    shown, folded = page[page.index("known.csv") :].split("Show all: 5 more regulators")
    assert ["all cells", "1", "0", "1"] in rows(shown) and [LABELS[0], "1", "0", "1"] in rows(shown)
    assert ["<b>R</b>", "", "", "2", "1", "0", "0"] in rows(shown) and [
        "R2",
        "y",
        "",
        "0",
        "0",
        "0",
        "1",
    ] in rows(shown)
    assert ["s", "", "", "1", "0", "0", "0"] in rows(folded), "without a certain edge"


def test_the_page_agrees_with_the_tables_of_types(tmp_path):
    """Its regulators, and the edges that it embeds, are those of edges_by_type.parquet."""
    dice = np.random.default_rng(0)
    pairs = [(f"r{n}", f"g{m}", label) for label in LABELS for n in range(6) for m in range(40)]
    table = pd.DataFrame(pairs, columns=["source", "target", "cell_type"])
    table["weight"], table["q_value"] = (
        dice.normal(size=len(table)),
        dice.uniform(size=len(table)) ** 4,
    )
    table = table.sort_values("weight", key=abs, ascending=False, kind="stable")
    table.to_parquet(tmp_path / "edges_by_type.parquet")
    of_types = edges_of_types(tmp_path / "edges_by_type.parquet")
    page = report(tmp_path / "page", of_types=of_types)
    sure = table[table["q_value"] <= 0.05].sort_values("q_value", kind="stable")
    for label in LABELS:
        own = sure[sure["cell_type"] == label]
        shown = [row[1] for row in regulators(page) if row[0] == label]
        first = list(dict.fromkeys(own["source"]))
        left = int(own["source"].isin(first[5:]).sum())
        assert shown == [
            *first[:5],
            *([f"{len(first) - 5} more regulators with {left} edges: certain.csv"] if left else []),
        ]
        data = embedded(page)
        at = data["types"].index(label)
        held = {
            (data["genes"][s], data["genes"][t])
            for s, t, k in zip(*map(data.get, "stk"), strict=True)
            if k == at
        }
        assert held >= set(zip(own["source"], own["target"], strict=True))


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


def embedded(page: str) -> dict:
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    )


def test_the_page_holds_the_edges_for_its_table_and_network(tmp_path):
    data = embedded(report(tmp_path))
    assert data["types"] == ["all cells", *LABELS[::-1]] and data["signed"] is True
    names = [
        (data["genes"][s], data["genes"][t]) for s, t in zip(data["s"], data["t"], strict=True)
    ]
    overall = [n for n, k in enumerate(data["k"]) if k == 0]
    assert [names[n] for n in overall] == [("<b>R</b>", "x"), ("<b>R</b>", "y"), ("R2", "x")]
    assert [data["w"][n] for n in overall] == [0.9, -0.7, 0.3]
    assert [data["q"][n] for n in overall] == [0.001, 0.04, 0.9]


def test_certain_edges_are_never_left_out_for_stronger_ones_of_a_target(monkeypatch):
    monkeypatch.setattr("grn.features.findings.summary.MOST", 3)
    edges = pd.DataFrame(
        {
            "source": ["A", "B", "A", "B"],
            "target": ["x", "x", "y", "z"],
            "weight": [0.9, 0.8, 0.2, 0.1],
        }
    )
    weights = [0.9, -0.8, 0.7, 0.6, 0.5, -0.4, 0.0]
    table = pd.DataFrame({"source": [f"R{n}" for n in range(7)], "target": "x", "weight": weights})
    assert kept_edges(table, 2)["weight"].tolist() == [0.9, -0.8, 0.7, -0.4]
    table["q_value"] = [0.9, 0.9, 0.9, 0.9, 0.01, 0.9, 0.01]
    assert kept_edges(table, 2)["weight"].tolist() == [0.9, -0.8, 0.7, 0.5, -0.4]
    none = edges.head(0).assign(cell_type="")
    text, count = edges_json(edges, none, signed=True)
    assert count == 3 and json.loads(text)["w"] == [0.9, 0.2, 0.1], (
        "each target's strongest comes before a second one"
    )
    text, _ = edges_json(edges.assign(q_value=[0.9, 0.04, 0.9, 0.9]), none, signed=True)
    assert json.loads(text)["w"] == [0.9, 0.8, 0.2]


def test_the_table_for_a_paper_has_the_certain_edges_of_all_cells_first():
    edges = pd.DataFrame(
        {"source": ["a", "b", "a"], "target": ["b", "a", "c"], "weight": [0.5, -0.2, 0.9]}
    )
    edges["q_value"] = [0.04, 0.01, 0.2]
    of_types = edges.assign(cell_type=["B", "A", "A"], q_value=[0.001, 0.03, 0.9])
    table = certain_table(edges, of_types)
    assert table[["source", "cell_type"]].to_numpy().tolist() == [
        *[["b", "all cells"], ["a", "all cells"]],
        *[["a", "B"], ["b", "A"]],
    ]
    assert certain_table(edges.assign(q_value=1.0), of_types.head(0)).empty
    assert both_ways(edges).startswith("1 pairs are certain in both directions") and not both_ways(
        edges.head(1)
    )


def test_uncertain_edges_of_genes_that_are_hardly_seen_together_are_not_on_the_page():
    edges = pd.DataFrame(
        {"source": "R", "target": list("abc"), "weight": 1.0, "q_value": [0.9, 0.9, 0.01]}
    )
    edges["cells"] = [9, 10, 3]
    text, count = edges_json(
        edges, edges.head(0).assign(cell_type=""), signed=True, genes=[*"abcz", "R"]
    )
    data = json.loads(text)
    assert count == 2 and data["genes"] == ["R", "b", "c"] and data["others"] == ["a", "z"]
    assert data["regulators"] == ["R"]
