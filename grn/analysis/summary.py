"""The results of a run as rows of tables, for the terminal and for the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

COMPOSITION = "composition"  # beside an edge that differences between states alone speak for
LEAST_CONFIDENCE, LEAST_BETWEEN = 0.6, 0.5

SCORES = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "auroc": "AUROC (one type against the rest)",
    "r2": "R2 of masked multiplicities",
}
LOSSES = {
    "cell_type_loss": "loss of cell types",
    "masked_multiplicity_loss": "loss of masked multiplicities",
    "property_loss": "loss of the property",
    "gene_identity_loss": "loss of gene identities (nats a gene)",
    "composition_loss": "loss of compositions (nats)",
    "loss": "loss, weighted sum",
}


def score_rows(metrics: Mapping[str, float], names: Mapping[str, str] = SCORES) -> list[tuple[str, float]]:
    """(readable name, value) of each metric that was measured."""
    return [(title, metrics[name]) for name, title in names.items() if not math.isnan(metrics.get(name, math.nan))]


def class_rows(per_class: pd.DataFrame) -> list[tuple[str, str, int]]:
    """(cell type, F1, number of test cells); a type without test cells has no F1."""
    return [
        (str(row["class"]), f"{row['f1']:.3f}" if row["cells"] else "-", int(row["cells"]))
        for _, row in per_class.iterrows()
    ]


def edge_columns(edges: pd.DataFrame) -> list[str]:
    """The columns of `edge_rows`, in words: those that the table has."""
    columns = ["regulator", "target", "weight"]
    told_apart = tells_apart(edges)
    columns += ["within", "between"] if told_apart else []
    columns += ["confidence"] if "confidence" in edges else []
    columns += ["q"] if "q_value" in edges else []
    return columns + (["note"] if told_apart else [])


def edge_rows(edges: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """The edges as texts: regulator, target, weight, and as far as the table has them within, between, confidence, q
    and a note (`is_composition`)."""
    told_apart = tells_apart(edges)
    notes = is_composition(edges) if told_apart else np.zeros(len(edges), dtype=bool)
    for edge, composed in zip(edges.itertuples(), notes, strict=True):
        row = [str(edge.source), str(edge.target), f"{edge.weight:+.3f}"]
        row += [f"{edge.within:+.3f}", f"{edge.between:+.2f}"] if told_apart else []
        row += [f"{edge.confidence:.2f}"] if "confidence" in edges else []
        row += [f"{edge.q_value:.2g}"] if "q_value" in edges else []
        yield (*row, *([COMPOSITION if composed else ""] if told_apart else []))


def tells_apart(edges: pd.DataFrame) -> bool:
    """Whether the table tells what an edge has within states from what it has between them; with one state, none is."""
    if not {"within", "between"} <= set(edges):
        return False
    return bool((edges["within"].notna() & (edges["between"].fillna(0) != 0)).any())


def is_composition(edges: pd.DataFrame) -> np.ndarray:
    """bool [edges]: levels of states that differ together, and nothing within states: it may be composition alone."""
    nothing_within = (edges["confidence"] < LEAST_CONFIDENCE) if "confidence" in edges else edges["within"] == 0
    return (nothing_within & (edges["between"].abs() > LEAST_BETWEEN)).to_numpy()


def found_rows(about: Mapping) -> list[tuple[str, int]]:
    """(all cells or a state, edges at a false discovery rate of 0.05), from uns["grn"]; none where it is not known."""
    found = about.get("found")
    if found is None:
        return []
    return [(str(label), int(edges)) for label, edges in zip(found["label"], found["edges"], strict=True)]


def states_sentence(about: Mapping, states: Sequence[str]) -> str:
    """Which states the network is of, and where they come from; states: their names. "" for older networks."""
    names = ", ".join(states[:12]) + (", ..." if len(states) > 12 else "")
    origins = {
        "labels": f"Cells are compared within {len(states)} states, the given labels: {names}.",
        "numeric": f"Cells are compared within {len(states)} states along a numeric column of obs: {names}.",
        "found": f"There are no labels, so cells are compared within {len(states)} states that were found in the "
        f"leading principal components of the genes: {names}.",
        "one": "All cells are compared with each other: no two cell types are given, and no states were found.",
    }
    if "cell_type" in about:
        return f"This is the network of one state of the cells alone: {about['cell_type']}."
    return origins.get(str(about.get("states", "")), "")


def levels_sentence(about: Mapping) -> str:
    """Whether the levels of states follow their regulators, and so count in the weights; "" where it is not known."""
    if "level_error" not in about:
        return ""
    error = float(about["level_error"])
    follows = (
        "levels follow their regulators, and differences between states count in the weights"
        if error < 1
        else "levels do not follow their regulators: differences between states may be composition, and do not count"
    )
    return (
        f"Slopes that were fitted to other states predict the levels of a state with error {error:.2f} (no difference "
        f"at all: 1), so {follows}."
    )


def edge_titles(signed: bool) -> tuple[str, str]:
    """Titles for the edges of positive weight and for those of negative weight."""
    if signed:
        return "Strongest up-regulations", "Strongest down-regulations"
    return "Most positive weights (no sign claimed)", "Most negative weights (no sign claimed)"
