"""Predicts cell types and representations of cells.

Letters: C cells, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from anndata import AnnData
from scipy import sparse

from grn.bags import Bags
from grn.cells.cells import Cells, CellsInPieces
from grn.cells.load import cells_in_pieces
from grn.cells.readers.registry import is_text
from grn.config.files import load_config
from grn.config.schema import DataConfig
from grn.model.saved import TrainedModel

READ = 1024  # cells that are read from a file, and by the identity token, at a time
BATCH = 128  # cells at a time whose genes every member predicts; divides READ
UNASSIGNED = "unassigned"


@dataclass(frozen=True)
class Predictions:
    """representation [C, D].   probabilities [C, classes] or None."""

    representation: np.ndarray
    probabilities: np.ndarray | None


def data_config(
    trained: TrainedModel,
    model: Path,
    data: Path,
    *,
    counts: str | None = None,
    gene_key: str | None = None,
    orientation: str | None = None,
) -> DataConfig:
    """The configuration by which to read `data`: as the training data were read, by the run's
    config.yaml if any.
    """
    folder = (model / "model" if (model / "model").is_dir() else model).resolve()
    of_run = folder.parent / "config.yaml"
    # else the model folder was copied out of its run
    in_run = folder.name == "model" and of_run.is_file()
    config = load_config(of_run).data if in_run else DataConfig(path=str(data))
    changes = {
        "path": str(data),
        "values": trained.values,
        "multiplicity": trained.multiplicity,
        "counts": counts or config.counts,
        "gene_key": None
        if gene_key == "null"
        else gene_key or config.gene_key,  # null: the index, as in data.gene_key
        "orientation": orientation or (config.orientation if is_text(data) else None),
        "genes": "all",
        # known gene names, by which a transposed text file is found
        "regulators": list(trained.vocabulary),
        "label_key": None,
        "group_key": None,
    }
    return config.model_copy(update=changes)


def pieces_of(
    adata: AnnData, trained: TrainedModel, config: DataConfig, rows: int | None
) -> CellsInPieces:
    """The cells with the model's genes and its transform, `rows` at a time; None: in one piece.

    Raises UserError.
    """
    return cells_in_pieces(
        adata,
        config,
        trained.vocabulary,
        rows=rows,
        regulators=trained.regulators,
        classes=trained.classes,
        target_total=trained.target_total,
        depth=trained.depth,
        measures_depth=trained.measures_depth,
        share_of_depth=trained.depth_share,
        keys=trained.keys,
    )


def predict_pieces(trained: TrainedModel, cells: CellsInPieces) -> tuple[Predictions, np.ndarray]:
    """Predictions for every cell, of which a piece at a time is in memory; and which have no count,
    bool [C].

    The probabilities of these are 0.
    """
    found: dict[str, Any] = {field.name: None for field in fields(Predictions)}
    empty = np.zeros(len(cells), dtype=bool)
    first = 0
    for piece in cells.pieces():
        part = slice(first, first + len(piece))
        empty[part] = without_counts(piece)
        for name, values in vars(predict_cells(trained, piece.multiplicity, piece.basal)).items():
            if values is None:
                continue
            # one array for all: many small ones would keep freed memory from being returned
            if found[name] is None:
                found[name] = np.empty((len(cells), *values.shape[1:]), values.dtype)
            found[name][part] = values
        first = part.stop
    if found["probabilities"] is not None:
        found["probabilities"][empty] = 0
    return Predictions(**found), empty


def cells_by_type(labels: np.ndarray) -> str:
    """How many of the cells have each label, the most frequent first, and which have none.

    >>> cells_by_type(np.array(["B", "T", "unassigned", "T"], dtype=object))
    'Of 4 cells: T 2 (50 %), B 1 (25 %); 1 unassigned (25 %).'
    """
    number = pd.Series(labels, dtype=object).value_counts()
    left = int(number.pop(UNASSIGNED)) if UNASSIGNED in number else 0
    order = sorted(number.items(), key=lambda each: (-each[1], str(each[0])))
    said = ", ".join(f"{name} {cells} ({cells / len(labels):.0%})" for name, cells in order)
    rest = f"{left} {UNASSIGNED} ({left / len(labels):.0%})" if left else f"none {UNASSIGNED}"
    return f"Of {len(labels)} cells: {'; '.join(filter(None, [said, rest]))}.".replace("%)", " %)")


def without_counts(cells: Cells) -> np.ndarray:
    """Which cells have none of the genes, bool [C]: nothing can be predicted for them."""
    return np.diff(cells.multiplicity.indptr) == 0


@torch.no_grad()
def predict_cells(
    trained: TrainedModel, multiplicity: sparse.csr_matrix, basal: np.ndarray
) -> Predictions:
    """Predictions for every cell, on the GPU where there is one, from CSR [C, N] and basal
    multiplicities [C].

    Of a model that was trained on genes, too, the identity token reads the cells as they are: what
    the regulators say of the genes, a hundred times the work, is not needed.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = trained.model.to(device).eval()
    representation: list[torch.Tensor] = []
    probabilities: list[torch.Tensor] = []
    step = READ if model.genes_train else BATCH
    for first in range(0, len(basal), step):
        part = slice(first, first + step)
        m = torch.from_numpy(multiplicity[part].toarray()).to(device)
        m_basal = torch.from_numpy(basal[part]).to(device)
        if model.genes_train:
            cell, logits = model.identity(m)
        else:
            read = model(Bags(m, m_basal))
            cell, logits = read.cell, read.logits
        representation.append(cell.cpu())
        if logits is not None:
            probabilities.append(logits.softmax(-1).cpu())
    return Predictions(
        torch.cat(representation).numpy(),
        torch.cat(probabilities).numpy() if probabilities else None,
    )


def add_predictions(
    adata: AnnData,
    predictions: Predictions,
    trained: TrainedModel,
    key: str,
    *,
    classes: Sequence[str],
    unassigned: np.ndarray,
    error: float | None = None,
) -> list[str]:
    """Write predictions into `adata` (grn.predict lists them); return the names of values that are
    replaced.

    classes: of the columns of the probabilities.
    unassigned [C]: cells that get no type.
    error: with which threshold (LinearReader.threshold, which is written to uns["KEY"]) some of
        them were chosen.
    """
    about: dict[str, Any] = {"model_hash": trained.hash}
    obs: dict[str, Any] = {}
    obsm: dict[str, Any] = {f"X_{key}": predictions.representation}
    if predictions.probabilities is not None:
        about["classes"] = np.array(classes, dtype=object)
        best = predictions.probabilities.argmax(1)
        names, confidence = list(classes), predictions.probabilities.max(1)
        if error is not None:
            about["error"], about["threshold"] = error, trained.model.identity.threshold(error)
        if (error is not None or unassigned.any()) and UNASSIGNED not in names:
            names.append(UNASSIGNED)
        if unassigned.any():
            best = np.where(unassigned, names.index(UNASSIGNED), best)
        obs[f"{key}_cell_type"] = pd.Categorical.from_codes(best, categories=names)
        obs[f"{key}_cell_type_confidence"] = confidence
        obsm[f"{key}_probabilities"] = predictions.probabilities
    replaced = []
    for name, values in {"obs": obs, "obsm": obsm, "uns": {key: about}}.items():
        replaced += [f"{name}[{each!r}]" for each in values if each in getattr(adata, name)]
        for each, value in values.items():
            getattr(adata, name)[each] = (
                value  # looked up each time: writing into a view makes new tables
            )
    return replaced
