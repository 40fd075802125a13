"""`report.html`: what a run found, the certain first, on one page that needs no other file and no
internet.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import pandas as pd

from grn.cells.genes import programmes
from grn.config.files import dump_config
from grn.config.schema import Config
from grn.edges.signed_network import SignedNetwork
from grn.evidence.q_values import SIGNIFICANT
from grn.features.findings.drivers import (
    CELLS,
    by_known,
    headline,
    left_out,
    named,
    of_programmes,
    sides_of,
    whose,
)
from grn.features.findings.known import NOT_CERTAIN, known_sentence, of_groups, of_regulators
from grn.features.findings.summary import (
    ALL,
    CLASS_COLUMNS,
    FEWEST,
    LOSSES,
    SCORES,
    activity_texts,
    both_ways,
    caused,
    certain,
    certain_sentence,
    class_rows,
    edge_texts,
    edges_json,
    found_texts,
    score_rows,
    size_text,
    sizes_known,
    states_sentence,
)
from grn.runtime.atomic import write_text

DEFINITION = (
    "How the expression of the target that the trained model expects changes, in standard "
    "deviations of it, when the regulator rises by one of its own within cell types and all else "
    "stays: the mean over cells and over the members of the ensemble (sd: over these). Weights of "
    "a target are divided by the square root of their size, so that targets that are hard to "
    "predict have edges, too; so compare weights, and do not read them as sizes. The network of a "
    "cell type is that of its cells; a regulator that does not vary there has weight 0. indirect: "
    "the share of the whole effect that goes through other regulators. between: how the levels of "
    "the two correlate over cell types, which is no part of a weight. In formulas: "
    "docs/outputs.md."
)
RATE = (
    "An edge is certain where its q-value is at most 0.05: of all edges with such a q-value or a "
    "smaller one, at most this share is expected to be chance. That is about associations, direct "
    "or indirect, and not about causes."
)
FOLDS = (
    "Fold change for a doubling: how many times as much of the target there is with twice as much "
    "of the regulator, with its 95 % interval; above 1 more, below 1 less. Weights are shrunk for "
    "ranking, fold changes are not. They are sizes of associations: what a knock-out does may be "
    "less. Those of rarely counted regulators are known badly."
)
CHANGES = (
    "Change for one unit more: how much more of the target there is with one unit more of the "
    "regulator, both in the unit of the values, with its 95 % interval. Weights are shrunk for "
    "ranking, these changes are not. They are sizes of associations: what a knock-out does may be "
    "less."
)
CAUTION = (
    "The weights describe what the model predicts, not what causes what: observed cells alone do "
    "not distinguish a cause from a mere correlation. On observed blood cells, signs of plain "
    "correlations agree with curated signed pairs (TRRUST, CollecTRI) no better than chance "
    "(balanced accuracy 0.50 to 0.52)."
)
CAUSED = (
    "What interventions did: the change of each gene against control cells, in its sds, as of "
    "more of the regulator, with its 95 % interval. Whether it is direct is not known from it."
)
MORE_CELLS = (
    "With so many cells, weaker correlations than the last column says cannot be told from "
    "chance; correlations half as strong need four times the cells. Genes and regulators that "
    "were not measured, or not used, cannot appear. Certain only together with other cells: those "
    "of this type do not show it by themselves."
)
COUNTS = (
    "Counts do not compare conditions: what is certain in one may be just short of it in the "
    "other. "
    "For differences: grn compare RUN --by {}."
)
FILES = {
    "certain.csv": "the certain edges, over all cells and by type: the table for a paper",
    "activity.csv": "the activity of regulators, with intervals and q-values",
    "known.csv": "the certain edges beside known pairs",
    "edges.parquet, edges_by_type.parquet": "the certain edges and the strongest others, most of "
    "them not certain",
    "network.h5ad": "the same as signed matrices for scanpy",
    "metrics.csv, confusion.csv": "scores of the test cells",
    "truth.csv": "the planted edges of simulated cells",
}
NEXT = {
    "drivers by known targets, on this page": "grn report {run} --regulons collectri",
    "the strongest regulators of one gene": "grn export {run} --targets GENE --format csv --output "
    "gene.csv",
    "what differs between two conditions, a column of the cells' "
    "table": "grn compare {run} --by {condition}",
    "the activity of well-known regulators": "grn activity {cells} --regulons collectri --by "
    "COLUMN",
}

MOST_EFFECTS, MOST_REGULATORS, TARGETS = (
    20,
    5,
    6,
)  # rows; of a type; genes that each raises or lowers
MOST_KNOWN = 20  # regulators beside known pairs
MOST_RESTING = 20  # rows of regulators whose activity rests on one programme
MOST_ACTIVE = 5  # regulators of a cell type
FEW_DONORS = 6  # with fewer, an interval of their means is a guess of how donors differ
EXPLORER = "Edges and network"  # its place on the page is in report.html


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
    activity: pd.DataFrame | None = None,
    known: pd.DataFrame | None = None,
    cells: int | None = None,
    title: str | None = None,
) -> Path:
    """Writes `folder`/report.html and returns its path.

    pictures: PNG by name, those of `network`, `activity`, `confusion` and `training` that exist.
    of_types: kept_edges of each cell type, with a column cell_type.
    activity: of regulators by cell type, as in activity.csv.
    known: certain edges beside known pairs, as in known.csv.
    """
    shown = {name: image(picture, name) for name, picture in pictures.items()}
    label = of_types["cell_type"].astype(str)
    by_type = {name: of_types[label == name] for name in dict.fromkeys([*network.by_type, *label])}
    counts = config.data.values == "counts"
    data, held = edges_json(
        edges, of_types, signed=network.signed, genes=network.genes, counts=counts
    )
    every = int((edges["weight"] != 0).sum()) + sum(
        weights.nnz for weights in network.by_type.values()
    )
    opening = [
        with_caption(shown[name], captions(activity)[name])
        for name in ("activity", "network")
        if name in shown
    ]
    # nothing is certain: types that are told right are what the cells say
    if "network" not in shown:
        opening.append(shown.pop("confusion", ""))
    sections = {
        "What is certain": certain_section(
            edges, by_type, network, config.data.state_key, counts=counts
        ),
        EXPLORER: "",
        "Beside known pairs": known_section(
            known, activity, config, edges["source"].nunique(), len(network.genes)
        ),
        "Activity of regulators": activity_section(activity, config.data.group_key is not None),
        "Test cells": test_cells(metrics, per_class, network.levels, shown.get("confusion", "")),
        "Tables and next steps": next_steps(folder, config),
        "Appendix: what the weights mean": meaning(network),
        "Appendix: training": "<details><summary>Losses and "
        f"errors</summary>{shown.get('training', '')}</details>",
        "Appendix: how to reproduce it": reproduce(config, network),
    }
    sections = {title: body for title, body in sections.items() if body or title == EXPLORER}
    bodies = [
        f'<h2 id="{anchor(title)}">{title}</h2>\n{body}' for title, body in sections.items() if body
    ]
    groups = "cell types" if network.about.get("states") == "labels" else "groups of cells"
    page = Template(
        files("grn.features.report").joinpath("report.html").read_text("utf-8")
    ).substitute(
        title=escape(title or folder.name),
        subtitle=escape(
            f"{config.data.path.rstrip(':')}: {len(network.genes)} genes, "
            f"{edges['source'].nunique()} regulators, {len(network.by_type)} {groups}. grn "
            f"{network.about['version']}, model {network.about['model_hash']}."
        ),
        links=" ".join(f'<a href="#{anchor(title)}">{title}</a>' for title in sections),
        numbers=numbers(cells, edges, network, metrics, per_class),
        sentence=first_sentences(edges, network, activity, config),
        pictures=side_by_side([picture for picture in opening if picture]),
        first=bodies[0],
        share=f"This page holds {held} of {every} edges: the certain ones, and of the others the "
        f"strongest whose genes are seen together in {FEWEST} cells; all are in edges.parquet and "
        "edges_by_type.parquet.",
        raises="raises the target" if network.signed else "positive",
        lowers="lowers the target" if network.signed else "negative",
        sections="\n".join(bodies[1:]),
        data=data,
        script=files("grn.features.report").joinpath("report.js").read_text("utf-8"),
    )
    write_text(folder / "report.html", page)
    return folder / "report.html"


def first_sentences(
    edges: pd.DataFrame, network: SignedNetwork, activity: pd.DataFrame | None, config: Config
) -> str:
    """HTML: the answer in a sentence, then how sure it is, what is artefact, and what would make it
    better.
    """
    answer, found = headline(activity), certain_sentence(network.about)
    about = [programmes.sentence(certain(edges)["target"]), left_out(activity)]
    advice = [*warnings_of(network, config, activity), str(network.about.get("hint", ""))]
    if activity is not None and not by_known(activity):
        advice.append(
            "No known regulons were given, so these are candidates; for human cells: grn data get "
            "collectri, then grn report RUN --regulons collectri."
        )
    if not answer:
        answer, found = found, ""
    parts = [f'<p class="answer">{escape(answer)}</p>']
    parts += [
        f"<p>{escape(' '.join(filter(None, [found, *about])))}</p>" if any([found, *about]) else ""
    ]
    parts += [f"<p>{escape(' '.join(filter(None, advice)))}</p>" if any(advice) else ""]
    return "".join(parts)


def warnings_of(network: SignedNetwork, config: Config, activity: pd.DataFrame | None) -> list[str]:
    """What the units of intervals and q-values are: donors, or cells, which are no replicates."""
    donors = network.about.get("parameters", {}).get("donors", 0)
    if config.data.group_key is None:
        return [CELLS] if activity is not None or "found" in network.about else []
    number = f"{donors} donors or batches" if donors else "Donors or batches"
    few = " So few say little of other donors." if 0 < donors < FEW_DONORS else ""
    effects = "" if config.data.intervention_key is None else " and of effects of interventions"
    return [
        f"{number} (the column {config.data.group_key!r}) are the units of the activity's "
        f"intervals{effects}.{few}"
    ]


def captions(activity: pd.DataFrame | None) -> dict[str, str]:
    """What the first pictures show, in words."""
    network = (
        "Certain edges, without those to common programmes: associations, so candidates; which of "
        "two genes acts on the other is not known."
    )
    if activity is None:
        return {"network": network, "activity": ""}
    if by_known(activity):
        known = (
            f"How active regulators are by their known targets ({whose(activity)}): red more, blue "
            "less."
        )
    else:
        known = (
            "Candidates: how active regulators are by their certain targets in this run: red more, "
            "blue less."
        )
    return {"network": network, "activity": known}


def with_caption(picture: str, text: str) -> str:
    return (
        f'<figure>{picture}<figcaption class="small">{escape(text)}</figcaption></figure>'
        if text
        else picture
    )


def numbers(
    cells: int | None,
    edges: pd.DataFrame,
    network: SignedNetwork,
    metrics: Mapping[str, float],
    per_class: pd.DataFrame,
) -> str:
    """HTML: the three numbers of a run, and a fourth of a screen."""
    found = {} if cells is None else {"cells": str(cells)}
    if "caused_q" in edges:
        found["certain effects of interventions"] = str(len(caused(edges)))
    if "found" in network.about:
        found["certain edges, direct or indirect"] = str(network.about["found"]["edges"].iloc[0])
    if "accuracy" in metrics and len(per_class):
        scored = f" (macro F1 {metrics['macro_f1']:.2f})" if "macro_f1" in metrics else ""
        found[f"of {int(per_class['cells'].sum())} test cells get their given label{scored}"] = (
            f"{metrics['accuracy']:.0%}"
        )
    return "".join(
        f"<div><strong>{value}</strong> {escape(what)}</div>" for what, value in found.items()
    )


def certain_section(
    edges: pd.DataFrame,
    by_type: Mapping[str, pd.DataFrame],
    network: SignedNetwork,
    condition: str | None,
    *,
    counts: bool,
) -> str:
    """Effects of interventions; then how many edges are certain, over all cells and in each type,
    and these edges.

    counts: whether effects of edges are fold changes.
    """
    about, parts = network.about, []
    if len(effects := caused(edges)):
        columns, rows = edge_texts(effects.head(MOST_EFFECTS).drop(columns=["sd"]))
        parts.append(f"<p>{escape(CAUSED)}</p>{table(columns, rows, numbers=len(columns) - 2)}")
    columns, rows = found_texts(about)
    parts.append(table(columns, rows, numbers=len(columns) - 1) if rows else "")
    more = [
        MORE_CELLS,
        *([COUNTS.format(condition)] if about.get("states") == "conditions" else []),
    ]
    parts.append(f"<p>{escape(' '.join(more))}</p>" if rows else "")
    edges_of = {ALL: edges, **by_type}
    parts.append(top_regulators(edges_of, signed=network.signed, counts=counts))
    sizes = (FOLDS if counts else CHANGES) if any(map(sizes_known, edges_of.values())) else ""
    rate = RATE if "q_value" in edges else ""
    sentences = [both_ways(edges), rate, sizes, states_sentence(about, list(network.by_type))]
    return "".join(parts) + f"<p>{escape(' '.join(filter(None, sentences)))}</p>"


def top_regulators(edges_of: Mapping[str, pd.DataFrame], *, signed: bool, counts: bool) -> str:
    """HTML: the regulators of certain edges, over all cells and in each type, in the order of their
    most certain edge, with the targets, the sizes and the q-values of these edges. counts: whether
    sizes are fold changes.
    """
    rows, sized = [], any(map(sizes_known, edges_of.values()))
    for label, edges in edges_of.items():
        found = certain(edges)
        regulators = list(dict.fromkeys(found["source"]))
        for regulator in regulators[:MOST_REGULATORS]:
            own = found[found["source"] == regulator]
            parts = [f"<td>{escape(label)}</td><th>{_gene(regulator, label)}</th>"]
            for colour, chosen in (("up", own["weight"] > 0), ("down", own["weight"] < 0)):
                ends = own[chosen].head(TARGETS)
                known = ends.reindex(columns=["effect", "effect_se"])
                sizes = [
                    size_text(effect, error, counts)
                    for effect, error in known.itertuples(index=False)
                ]
                genes = [
                    f"{_gene(target, label)} {size}{' ' if size else ''}<span "
                    f'class="small">{q:.2g}</span>'
                    for target, size, q in zip(ends["target"], sizes, ends["q_value"], strict=True)
                ]
                more = [f"{int(chosen.sum()) - TARGETS} more"] if chosen.sum() > TARGETS else []
                parts.append(f'<td class="{colour}">{", ".join([*genes, *more])}</td>')
            rows.append(f"<tr>{''.join(parts)}</tr>")
        if others := regulators[MOST_REGULATORS:]:
            number = int(found["source"].isin(others).sum())
            left = f"{len(others)} more regulators with {number} edges: certain.csv"
            rows.append(
                f'<tr><td>{escape(label)}</td><td class="small" colspan="3">{left}</td></tr>'
            )
    if not rows:
        return ""
    up, down = ("raises", "lowers") if signed else ("positive", "negative")
    what = "q" if not sized else "fold change, q" if counts else "change, q"
    head = "".join(
        f"<th>{name}</th>" for name in ("cells", "regulator", f"{up} ({what})", f"{down} ({what})")
    )
    grey = '<p class="small">Grey genes are of a common programme (ribosomal, heat shock, ...).</p>'
    listed = (
        f'<table class="top"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )
    return listed + (grey if 'class="gene common"' in listed else "")


def _gene(name: str, label: str) -> str:
    """HTML: a gene that is looked up by a click; of a common programme, greyed, with the programme
    in its title.
    """
    programme = programmes.programme_of(name)
    common = f' common" title="{programmes.in_words(programme)}' if programme else ""
    return (
        f'<span class="gene{common}" data-gene="{escape(name)}" '
        f'data-type="{escape(label)}">{escape(name)}</span>'
    )


def known_section(
    known: pd.DataFrame | None,
    activity: pd.DataFrame | None,
    config: Config,
    regulators: int,
    genes: int,
) -> str:
    """What a known network says of the certain edges, and what these add to its regulators."""
    if known is None:
        return ""
    groups = of_groups(known, "cell_type").drop(columns=NOT_CERTAIN)
    of_cells = table(
        ["cells", *groups], [(str(name), *row) for name, *row in groups.itertuples()], numbers=3
    )
    columns, rows = of_regulators(known, activity)
    # sorted by their certain edges
    first = [row for row in rows if row[-3:] != ("0", "0", "0")][:MOST_KNOWN]
    parts = [table(columns, first, numbers=4)] if first else []
    if others := rows[len(first) :]:
        more = table(columns, others, numbers=4)
        parts.append(
            f"<details><summary>Show all: {len(others)} more regulators</summary>{more}</details>"
        )
    given = Path(str(config.network.regulons)).name
    name = whose(activity) if activity is not None and by_known(activity) else given
    sentence = known_sentence(known, name, regulators, genes)
    return f"<p>{escape(sentence)} The table is known.csv.</p>{of_cells}{''.join(parts)}"


def activity_section(activity: pd.DataFrame | None, grouped: bool) -> str:
    if activity is None:
        return ""
    may = named(activity)
    columns, rows = activity_texts(
        may[may["q_value"] <= SIGNIFICANT].groupby("cell_type", sort=False).head(MOST_ACTIVE)
    )
    sides = sides_of(activity)
    means = "a type's mean minus that of other cells"
    if sides is not None:
        means = f"the mean in {sides[1]} minus that in {sides[0]}"
    explained = (
        f"This is read from published targets ({whose(activity)}) and not from the network of this "
        "run; the regulator itself need not be measured. "
        if by_known(activity)
        else ""
    ) + (
        "A regulator is active where the genes that it raises are high and those that it lowers "
        f"are low ({whose(activity)}): the t-value of a cell's values on its weights. Effect: "
        f"{means}. "
        + (
            "Own messenger: the same for the regulator's own level. "
            if "messenger" in activity
            else ""
        )
        + ("Donors are the units of intervals." if grouped else CELLS)
    )
    body = (
        table(columns, rows, numbers=len(columns) - 2)
        if rows
        else "<p>No difference has a q-value of at most 0.05.</p>"
    )
    largest = (
        f"<details open><summary>The largest differences in activity</summary>{body}</details>"
    )
    resting = of_programmes(activity)
    columns, rows = activity_texts(
        activity[activity["regulator"].isin(list(resting))].head(MOST_RESTING)
    )
    others = f"<p>{escape(left_out(activity))}</p>" if rows else ""
    activity = table(columns, rows, numbers=len(columns) - 2)
    others += f"<details><summary>Their activity</summary>{activity}</details>"
    return f"<p>{escape(explained)}</p>{largest}{others if rows else ''}"


def next_steps(folder: Path, config: Config) -> str:
    there = [
        (name, what) for name, what in FILES.items() if (folder / name.split(",")[0]).is_file()
    ]
    simulated = config.data.path == "simulated:"
    known = {
        "run": folder,
        "cells": config.data.path,
        "condition": config.data.state_key or "COLUMN",
    }
    rows = [
        (what, text.format(**known))
        for what, text in NEXT.items()
        if "{cells}" not in text or not simulated
    ]
    return table(["beside this page", ""], there, numbers=0) + table(
        ["for", "command"], rows, numbers=0
    )


def reproduce(config: Config, network: SignedNetwork) -> str:
    return (
        f"<p>With grn {escape(str(network.about['version']))}, save the fields below as run.yaml "
        "and call <code>grn train run.yaml --output again</code>; on the same kind of machine, "
        "the same seed gives the same networks.</p><details><summary>Every "
        f"field</summary><pre>{escape(dump_config(config))}</pre></details>"
    )


def test_cells(
    metrics: Mapping[str, float],
    per_class: pd.DataFrame,
    levels: pd.DataFrame | None,
    confusion: str,
) -> str:
    rows = [(name, f"{value:.3f}") for name, value in score_rows(metrics, SCORES | LOSSES)]
    parts = [table(["metric", "value"], rows, numbers=1)] if rows else []
    if len(per_class):
        of_types = class_rows(per_class, levels)
        told = any(markers for *_, markers in of_types)
        columns = ["cell type", *(["marker genes"] if told else []), *CLASS_COLUMNS[1:3]]
        classes = [
            (name, *([markers] if told else []), f1, cells) for name, f1, cells, markers in of_types
        ]
        parts.append(table(columns, classes, numbers=2))
    return side_by_side(parts) + confusion


def meaning(network: SignedNetwork) -> str:
    about = network.about
    entries = {
        "Sign of a weight": about["sign"],
        "Definition of a weight": about.get("definition", DEFINITION),
        "In network.h5ad": f'varp["grn"], {about["orientation"]}; one more for each cell type, '
        'listed in uns["grn"]',
    }
    if prior := about.get("prior"):
        others = "no other edges." if prior["use"] == "restrict" else "other edges, too."
        entries["Prior network"] = (
            f"It lists {prior['pairs']} pairs of these genes. The network has {others}"
        )
    entries["Caution"] = CAUTION
    rows = (f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in entries.items())
    return f"<dl>{''.join(rows)}</dl>"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: int) -> str:
    """An HTML table, its last `numbers` columns aligned right. Every text is escaped: labels may
    look like HTML.
    """
    first = len(columns) - numbers

    def line(tag: str, values: Sequence[object]) -> str:
        classes = [""] * first + [' class="number"'] * numbers
        cells = [
            f"<{tag}{name}>{escape(str(value))}</{tag}>"
            for name, value in zip(classes, values, strict=True)
        ]
        return f"<tr>{''.join(cells)}</tr>"

    body = "\n".join(line("td", row) for row in rows)
    return f"<table>\n<thead>{line('th', columns)}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def side_by_side(parts: Sequence[str]) -> str:
    return (
        '<div class="beside">' + "".join(f"<div>{part}</div>" for part in parts) + "</div>"
        if parts
        else ""
    )


def image(png: bytes, name: str) -> str:
    data = base64.b64encode(png).decode("ascii")
    return f'<p class="wide"><img alt="{escape(name)}" src="data:image/png;base64,{data}"></p>'


def anchor(title: str) -> str:
    return title.lower().replace(" ", "-")
