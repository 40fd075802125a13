"""The results of a run as rows of tables, for the terminal and for the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import pandas as pd

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


def edge_rows(edges: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """(regulator, target, weight, confidence), the last only where the table has it."""
    for edge in edges.itertuples():
        confidence = [f"{edge.confidence:.2f}"] if "confidence" in edges else []
        yield (str(edge.source), str(edge.target), f"{edge.weight:+.3f}", *confidence)


def edge_titles(signed: bool) -> tuple[str, str]:
    """Titles for the edges of positive weight and for those of negative weight."""
    if signed:
        return "Strongest up-regulations", "Strongest down-regulations"
    return "Most positive weights (no sign claimed)", "Most negative weights (no sign claimed)"
