"""`report.html`: the results of a run on one page, which needs no other file and no internet connection."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import pandas as pd

from grn.analysis.summary import (
    ALL,
    LOSSES,
    SCORES,
    class_rows,
    edge_texts,
    edge_titles,
    edges_json,
    found_rows,
    score_rows,
    states_sentence,
    tells_apart,
)
from grn.config.files import dump_config
from grn.config.schema import Config
from grn.io.atomic import write_text
from grn.networks.run_files import strongest_edges
from grn.networks.signed_network import SignedNetwork

DEFINITION = (
    "w = what the trained model expects of the target when the regulator is raised: the derivative of the signed block "
    "that predicts the target, with the change of its norm, for a usual sd of the regulator within states, in sds of "
    "the target, over the square root of the norm of the target's row; the mean over cells and over the ensemble's "
    "members (sd: over these). It is the direct effect: other regulators, and what genes read of the basal gene, are "
    "held fixed; the column indirect has their share of the total. The network of a cell type is that of its cells; "
    "a regulator that does not vary in the type has weight 0 in it. between: the correlation of the target's levels "
    "with those of the regulator over the states, which is no part of a weight."
)
CONFIDENCE = "probability that the sign is right, against knock-off regulators (0.5: nothing is known)"
UNKNOWN = "not computed (network.false_discovery: false)"
CAUTION = (
    "The weights describe what the model predicts, not what causes what: observed cells alone do not distinguish a "
    "cause from a mere correlation. On observed blood cells, signs of plain correlations agree with curated signed "
    "pairs (TRRUST, CollecTRI) no better than chance (balanced accuracy 0.50 to 0.52)."
)

APART = (
    "weight: what differences between cells of one state say; between: how the target's levels go with the regulator's "
    "from state to state. Of an edge with the note composition, the weight is uncertain: the states may differ in both "
    "genes because of what they are made of."
)
RATE = (
    "The q-value of an edge is the rate of false associations within states, against knock-off regulators, among the "
    "edges at least as strong. It says nothing about false causes."
)

MOST_REGULATORS, TARGETS = 6, 4  # of a type, and genes that each raises or lowers
EXPLORER = "Edges and network"  # its place on the page is in report.html
TOP = (
    "<p>A regulator's place is that of its strongest edge in the type. Beside it, what it raises and what it lowers "
    "most. Click on a gene to see its edges.</p>"
)


def write_report(
    folder: Path,
    *,
    config: Config,
    metrics: Mapping[str, float],
    per_class: pd.DataFrame,
    edges: pd.DataFrame,
    network: SignedNetwork,
    pictures: Mapping[str, bytes],
    of_types: pd.DataFrame,
    cells: int | None = None,
    title: str | None = None,
) -> Path:
    """Writes `folder`/report.html and returns its path.

    pictures: PNG by name, those of `confusion`, `training`, `edges`, `between` and `heatmaps` that exist.
    of_types: strongest_of_targets of each cell type, with a column cell_type.
    """
    shown = {name: image(picture, name) for name, picture in pictures.items()}
    label = of_types["cell_type"].astype(str)
    by_type = {name: of_types[label == name] for name in dict.fromkeys([*network.by_type, *label])}
    data, held = edges_json(edges, of_types, signed=network.signed)
    every = int((edges["weight"] != 0).sum()) + sum(weights.nnz for weights in network.by_type.values())
    first = "Top regulators of each cell type" if network.by_type else "Top regulators"
    sections = {
        first: TOP + top_regulators(by_type or {ALL: edges}, signed=network.signed),
        EXPLORER: "",
        "Test cells": test_cells(metrics, per_class, shown.get("confusion", "")),
        "Evidence": network_section(edges, network, shown),
        "Cell types" if network.by_type else "Regulators and targets": by_type_section(
            network, shown.get("heatmaps", ""), by_type
        ),
        "Training": shown.get("training", ""),
        "What the weights mean": meaning(network),
        "How to reproduce it": reproduce(config, network),
    }
    sections = {title: body for title, body in sections.items() if body or title == EXPLORER}
    bodies = [f'<h2 id="{anchor(title)}">{title}</h2>\n{body}' for title, body in sections.items() if body]
    page = Template(files("grn.analysis").joinpath("report.html").read_text("utf-8")).substitute(
        title=escape(title or folder.name),
        subtitle=escape(
            f"{config.data.path.rstrip(':')}: {'' if cells is None else f'{cells} cells, '}{len(network.genes)} genes, "
            f"{edges['source'].nunique()} regulators, {len(network.by_type)} cell types. grn "
            f"{network.about['version']}, model {network.about['model_hash']}."
        ),
        links=" ".join(f'<a href="#{anchor(title)}">{title}</a>' for title in sections),
        first=bodies[0],
        share=f"It holds the strongest {held} of {every} edges; all are in edges.parquet and edges_by_type.parquet.",
        confidence=CONFIDENCE if "confidence" in edges else UNKNOWN,
        raises="raises the target" if network.signed else "positive",
        lowers="lowers the target" if network.signed else "negative",
        sections="\n".join(bodies[1:]),
        data=data,
        script=files("grn.analysis").joinpath("report.js").read_text("utf-8"),
    )
    write_text(folder / "report.html", page)
    return folder / "report.html"


def top_regulators(of_types: Mapping[str, pd.DataFrame], *, signed: bool) -> str:
    """HTML: for each type its top regulators, in the order of their strongest edges so that none fills a type alone."""
    up, down = ("raises", "lowers") if signed else ("positive", "negative")
    cards = []
    for label, edges in of_types.items():
        rows = []
        for regulator in list(dict.fromkeys(edges["source"][edges["weight"] != 0]))[:MOST_REGULATORS]:
            own = edges[edges["source"] == regulator]
            parts = []
            for word, colour, chosen in ((up, "up", own["weight"] > 0), (down, "down", own["weight"] < 0)):
                genes = ", ".join(_gene(target, label) for target in own["target"][chosen].head(TARGETS))
                parts.append(f'<td class="{colour}">{word + " " + genes if genes else ""}</td>')
            rows.append(f"<tr><th>{_gene(regulator, label)}</th>{''.join(parts)}</tr>")
        if rows:
            cards.append(f'<div class="card"><h3>{escape(label)}</h3><table class="top">{"".join(rows)}</table></div>')
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _gene(name: str, label: str) -> str:
    return f'<span class="gene" data-gene="{escape(name)}" data-type="{escape(label)}">{escape(name)}</span>'


def reproduce(config: Config, network: SignedNetwork) -> str:
    return (
        f"<p>With grn {escape(str(network.about['version']))}, save the fields below as run.yaml and call "
        "<code>grn train run.yaml --output again</code>; on the same kind of machine, the same seed gives the same "
        "networks. For another program: <code>grn export RUN --format csv --output network.csv</code>.</p>"
        f"<details><summary>Every field</summary><pre>{escape(dump_config(config))}</pre></details>"
    )


def test_cells(metrics: Mapping[str, float], per_class: pd.DataFrame, confusion: str) -> str:
    rows = [(name, f"{value:.3f}") for name, value in score_rows(metrics, SCORES | LOSSES)]
    parts = [table(["metric", "value"], rows, numbers=1)] if rows else []
    parts += [table(["cell type", "F1", "test cells"], class_rows(per_class), numbers=2)] if len(per_class) else []
    return side_by_side(parts) + confusion


def network_section(edges: pd.DataFrame, network: SignedNetwork, shown: Mapping[str, str]) -> str:
    parts = edge_tables(strongest_edges(edges, 15), network.signed)
    tables = f"<details><summary>The strongest edges over all cells</summary>{side_by_side(parts)}</details>"
    about = network.about
    known = f"{CONFIDENCE}; paler bars are less confident" if "confidence" in edges else UNKNOWN
    sentences = [states_sentence(about, list(network.by_type)), f"Confidence: {known}."]
    explained = f"<p>{escape(' '.join([*filter(None, sentences), 'All edges are in edges.parquet.']))}</p>"
    explained += f"<p>{escape(APART)}</p>" if tells_apart(edges) else ""
    if counts := found_rows(about):
        explained += f"<p>{escape(RATE)}</p>" + table(["cells", "edges with q of at most 0.05"], counts, numbers=1)
    return explained + shown.get("between", "") + (tables + shown.get("edges", "") if parts else "")


def by_type_section(network: SignedNetwork, heatmaps: str, edges_of_types: Mapping[str, pd.DataFrame]) -> str:
    tables = []
    for label in network.by_type:
        strongest = strongest_edges(edges_of_types[label], 10)
        body = side_by_side(edge_tables(strongest, network.signed))
        tables.append(f"<details><summary>{escape(label)}</summary>{body}</details>")
    explained = "<p>Weights among the regulators and targets of the strongest edges over all cells, on one scale.</p>"
    return (explained + heatmaps if heatmaps else "") + "".join(tables)


def meaning(network: SignedNetwork) -> str:
    about = network.about
    entries = {
        "Sign of a weight": about["sign"],
        "Definition of a weight": DEFINITION,
        "In network.h5ad": f'varp["grn"], {about["orientation"]}; one more for each cell type, listed in uns["grn"]',
    }
    if prior := about.get("prior"):
        others = "no other edges." if prior["use"] == "restrict" else "other edges, too."
        entries["Prior network"] = f"It lists {prior['pairs']} pairs of these genes. The network has {others}"
    entries["Caution"] = CAUTION
    return f"<dl>{''.join(f'<dt>{escape(term)}</dt><dd>{escape(text)}</dd>' for term, text in entries.items())}</dl>"


def edge_tables(strongest: tuple[pd.DataFrame, pd.DataFrame], signed: bool) -> list[str]:
    """A table of the positive edges and one of the negative edges; without edges, no table."""
    parts = []
    for title, colour, edges in zip(edge_titles(signed), ("up", "down"), strongest, strict=True):
        if len(edges):
            columns, rows = edge_texts(edges)
            parts.append(f'<h3 class="{colour}">{title}</h3>{table(columns, rows, numbers=len(columns) - 2)}')
    return parts


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: int) -> str:
    """An HTML table, its last `numbers` columns aligned right. Every text is escaped: labels may look like HTML."""
    first = len(columns) - numbers

    def line(tag: str, values: Sequence[object]) -> str:
        classes = [""] * first + [' class="number"'] * numbers
        cells = [f"<{tag}{name}>{escape(str(value))}</{tag}>" for name, value in zip(classes, values, strict=True)]
        return f"<tr>{''.join(cells)}</tr>"

    body = "\n".join(line("td", row) for row in rows)
    return f"<table>\n<thead>{line('th', columns)}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def side_by_side(parts: Sequence[str]) -> str:
    return '<div class="beside">' + "".join(f"<div>{part}</div>" for part in parts) + "</div>" if parts else ""


def image(png: bytes, name: str) -> str:
    data = base64.b64encode(png).decode("ascii")
    return f'<p class="wide"><img alt="{escape(name)}" src="data:image/png;base64,{data}"></p>'


def anchor(title: str) -> str:
    return title.lower().replace(" ", "-")
