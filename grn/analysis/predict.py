"""Predicts cell types, representations and properties of cells, and writes them into an AnnData or a copy of a file.

Letters: C cells, D width.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from anndata import AnnData

from grn.analysis.labels import LabelMap, LabelScores, given_labels, merged, read_map, refuse_unused, score_labels
from grn.cells.cells import Cells, CellsInPieces
from grn.cells.load import cells_in_pieces
from grn.cells.loading.batches import is_packed, plain_batches
from grn.cells.readers.registry import MEMORY, is_text, source_in_file
from grn.config.files import load_config
from grn.config.schema import DataConfig, Orientation
from grn.errors import ConfigError, RunFolderError
from grn.io.atomic import write_text
from grn.io.h5ad import write_anndata
from grn.messages import Say
from grn.model.saved import TrainedModel
from grn.model.transformer import Model

BATCH = 64  # cells at a time; more would take too much memory with bags of a whole transcriptome
READ = 1024  # cells that are read from a file, and by the cell reader, at a time; a multiple of BATCH
UNASSIGNED = "unassigned"
WITHOUT_TYPES = "is about cell types, and the model was trained without labels; leave it out, or train with labels."


@dataclass(frozen=True)
class Predictions:
    """representation [C, D].   probabilities [C, classes] or None.   property [C] in its own unit, or None."""

    representation: np.ndarray
    probabilities: np.ndarray | None
    property: np.ndarray | None


def predict(
    model: Path,
    data: Path,
    output: Path,
    *,
    key_added: str,
    counts: str | None,
    gene_key: str | None,
    orientation: str | None = None,
    error: float | None = None,
    names: LabelMap | str | os.PathLike[str] | None = None,
    labels: str | None = None,
    say: Say,
) -> None:
    """Writes the new file `output`: the cells in `data` with the predictions of `model` (see add_predictions).

    counts, gene_key, orientation: as in DataConfig; None: as in the training of the model.
    error, names, labels: see annotate; with labels, the confusion goes to a second file, OUTPUT_confusion.csv.
    Raises UserError.
    """
    refuse_key(key_added)
    if output.exists():
        raise RunFolderError(f"{output} already exists and is not overwritten; give --output another name.")
    if output.suffix != ".h5ad":
        raise ConfigError(f"--output is {output}, but predict writes .h5ad files; give a name that ends in .h5ad.")
    confusion = output.with_name(f"{output.stem}_confusion.csv")
    if labels is not None and confusion.exists():
        raise RunFolderError(f"{confusion} already exists and is not overwritten; give --output another name.")
    trained = TrainedModel.load(model)
    refuse_error(error, trained)
    config = data_config(trained, model, data, counts=counts, gene_key=gene_key, orientation=orientation)
    with source_in_file(config) as adata:
        replaced, scores = annotate(adata, trained, config, key_added, say, error=error, names=names, labels=labels)
        if replaced:
            say(f"{output} has new values of {', '.join(replaced)}; the old values are still in {data}.")
        write_anndata(output, adata)
    if scores is not None:
        write_text(confusion, scores.confusion.to_csv())
        say(f"Cells by given and by predicted type are in {confusion}.")
    say(f"{adata.n_obs} cells with their predictions are in {output}.")


def annotate(
    adata: AnnData,
    trained: TrainedModel,
    config: DataConfig,
    key: str,
    say: Say,
    *,
    error: float | None = None,
    names: LabelMap | str | os.PathLike[str] | None = None,
    labels: str | None = None,
) -> tuple[list[str], LabelScores | None]:
    """Writes predictions for the cells of `adata` into it (see add_predictions).

    config: how to read the cells.   key, error: see add_predictions.   names: other names for types, of the model and
    of the given labels (see grn.analysis.labels).   labels: the column of obs with given labels.
    Returns the names of replaced values, and the scores against the given labels. Raises UserError before anything is
    written.
    """
    wanted = {} if names is None else read_map(names)
    if (wanted or labels is not None) and not trained.classes:
        raise ConfigError(f"{'--map' if wanted else '--labels'} {WITHOUT_TYPES}")
    given = None if labels is None else given_labels(adata, labels, {})
    refuse_unused(wanted, trained.classes, () if given is None else [name for name in given if name is not None])
    cells = _in_pieces(adata, trained, config, READ)
    for line in (cells.counts_from, *cells.notes):
        say(line)
    if not trained.classes:
        say("No cell types are predicted, because the model was trained without labels.")
    predictions, empty = _predict_pieces(trained, cells)
    _say_empty(empty, len(cells), say)
    unsure = None
    if error is not None and predictions.probabilities is not None and trained.model.reader is not None:
        # Of the model's own types: renamed ones are sums, and no less often right.
        unsure = predictions.probabilities.max(1) < trained.model.reader.threshold(error)
        left = int(unsure.sum())
        say(f"{left} of {len(cells)} cells are {UNASSIGNED}, so that at most {error:.1%} of the others are wrong.")
    classes = trained.classes
    if wanted and predictions.probabilities is not None:
        probabilities, classes = merged(predictions.probabilities, classes, wanted)
        predictions = replace(predictions, probabilities=probabilities)
    scores = None
    if labels is not None and predictions.probabilities is not None:
        found = np.array(classes, dtype=object)[predictions.probabilities.argmax(1)]
        found = found if unsure is None else np.where(unsure, UNASSIGNED, found)
        scores = score_labels(given_labels(adata, labels, wanted), found, classes, UNASSIGNED)
        say(scores.sentence(labels))
    replaced = add_predictions(adata, predictions, trained, key, classes=classes, error=error, unsure=unsure)
    if scores is not None:
        adata.uns[key] |= scores.values()
    return replaced, scores


def cells_of_model(adata: AnnData, trained: TrainedModel, config: DataConfig, say: Say) -> Cells:
    """The cells with the model's genes and its transform; says what was found. Raises UserError."""
    (cells,) = _in_pieces(adata, trained, config, None).pieces()
    for line in (cells.counts_from, *cells.notes):
        say(line)
    _say_empty(_empty(cells), len(cells), say)
    return cells


def _in_pieces(adata: AnnData, trained: TrainedModel, config: DataConfig, rows: int | None) -> CellsInPieces:
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
    )


def _predict_pieces(trained: TrainedModel, cells: CellsInPieces) -> tuple[Predictions, int]:
    """Predictions for every cell, of which a piece at a time is in memory, and how many have no gene of the model."""
    found: dict[str, Any] = {field.name: None for field in fields(Predictions)}
    first = empty = 0
    for piece in cells.pieces():
        for name, values in vars(predict_cells(trained, piece)).items():
            if values is None:
                continue
            if found[name] is None:  # one array for all: many small ones would keep freed memory from being returned
                found[name] = np.empty((len(cells), *values.shape[1:]), values.dtype)
            found[name][first : first + len(piece)] = values
        first += len(piece)
        empty += _empty(piece)
    return Predictions(**found), empty


def _empty(cells: Cells) -> int:
    return int((np.diff(cells.multiplicity.indptr) == 0).sum())


def _say_empty(empty: int, cells: int, say: Say) -> None:
    if empty:
        say(f"{empty} of {cells} cells have none of the model's genes: their predictions are meaningless.")


def refuse_key(key: str) -> None:
    """Raises ConfigError for a key that .h5ad files cannot store."""
    if not key or "/" in key or not key.isprintable():
        raise ConfigError(
            f"--key-added is {key!r}; give a name without '/' and control characters, which .h5ad files cannot store."
        )


def refuse_error(error: float | None, trained: TrainedModel) -> None:
    """Raises ConfigError for an error that is no share, or that the model has no held-out cells for."""
    if error is None:
        return
    if isinstance(error, bool) or not isinstance(error, (int, float)) or not 0 < error < 1:
        raise ConfigError(f"--error is {error}; give the share of wrong labels that you accept, as 0.05.")
    if not trained.classes:
        raise ConfigError(f"--error {WITHOUT_TYPES}")
    reader = trained.model.reader
    if reader is None or not len(reader.confidence):
        raise ConfigError(
            "--error needs the confidences of held-out cells, which this model has not; train it again with "
            "cell_reader.members: 8, or leave --error out."
        )


def data_config(
    trained: TrainedModel,
    model: Path,
    data: Path,
    *,
    counts: str | None = None,
    gene_key: str | None = None,
    orientation: str | None = None,
) -> DataConfig:
    """The configuration by which to read `data`: as the training data were read, by the run's config.yaml if any."""
    if orientation not in (None, *get_args(Orientation)):
        raise ConfigError(f"data.orientation is {orientation!r}; it must be {' or '.join(get_args(Orientation))}.")
    if orientation is not None and str(data) == MEMORY:
        raise ConfigError("data.orientation is of text files, and these cells are an AnnData; leave it out.")
    folder = (model / "model" if (model / "model").is_dir() else model).resolve()
    of_run = folder.parent / "config.yaml"
    in_run = folder.name == "model" and of_run.is_file()  # else the model folder was copied out of its run
    config = load_config(of_run).data if in_run else DataConfig(path=str(data))
    changes = {
        "path": str(data),
        "values": trained.values,
        "multiplicity": trained.multiplicity,
        "counts": counts or config.counts,
        "gene_key": None if gene_key == "null" else gene_key or config.gene_key,  # null: the index, as in data.gene_key
        "orientation": orientation or (config.orientation if is_text(data) else None),
        "genes": "all",
        "regulators": list(trained.vocabulary),  # known gene names, by which a transposed text file is found
        "label_key": None,
        "group_key": None,
        "backed": False,  # of an .h5ad file, more than X stays in it (source_in_file)
    }
    return config.model_copy(update=changes)


def predict_cells(trained: TrainedModel, cells: Cells) -> Predictions:
    """Predictions for every cell, without masks, on the GPU where there is one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = trained.model.to(device).eval()
    if model.reader is not None and model.property is None:
        return _read_cells(model, cells, device)
    packed = is_packed("auto", len(trained.vocabulary))
    representation, logits, properties = [], [], []
    with torch.no_grad():
        for batch in plain_batches(cells, np.arange(len(cells)), BATCH, packed=packed):
            prediction = model(batch.bags.to(device))
            representation.append(prediction.cell.float().cpu())
            if prediction.logits is not None:
                logits.append(prediction.logits.float().softmax(-1).cpu())
            if prediction.property is not None:
                properties.append(prediction.property.cpu())
    return Predictions(
        representation=torch.cat(representation).numpy(),
        probabilities=torch.cat(logits).numpy() if logits else None,
        property=torch.cat(properties).numpy() if properties else None,
    )


def _read_cells(model: Model, cells: Cells, device: torch.device) -> Predictions:
    """What the cell reader predicts: the blocks, which take a hundred times as long, are not needed for it."""
    assert model.reader is not None, "the caller has asked"
    representation, probabilities = [], []
    with torch.no_grad():
        for first in range(0, len(cells), READ):
            part = slice(first, first + READ)
            multiplicity = torch.from_numpy(cells.multiplicity[part].toarray()).to(device)
            cell, logits = model.reader(multiplicity, torch.from_numpy(cells.basal[part]).to(device))
            representation.append(cell.cpu())
            probabilities.append(logits.softmax(-1).cpu())
    return Predictions(torch.cat(representation).numpy(), torch.cat(probabilities).numpy(), None)


def add_predictions(
    adata: AnnData,
    predictions: Predictions,
    trained: TrainedModel,
    key: str,
    *,
    classes: Sequence[str],
    error: float | None = None,
    unsure: np.ndarray | None = None,
) -> list[str]:
    """Writes predictions into `adata`; returns the names of values that existed before and are replaced.

    classes: of the columns of the probabilities.   unsure [C]: cells that are left unassigned, for an `error`.

    obsm["X_KEY"]: representation.   uns["KEY"]: model_hash, classes and property (the names of the columns).
    error: cells with a confidence that more than this share of errors goes with are "unassigned" (CellReader.threshold,
    which is written to uns["KEY"]); None: every cell has its most probable type.
    With cell types: obs["KEY_cell_type"], obs["KEY_cell_type_confidence"] (the largest probability),
    obsm["KEY_probabilities"], columns in the order of uns["KEY"]["classes"].   With a property: obs["KEY_property"].
    """
    about: dict[str, Any] = {"model_hash": trained.hash}
    obs: dict[str, Any] = {}
    obsm: dict[str, Any] = {f"X_{key}": predictions.representation}
    if predictions.probabilities is not None:
        about["classes"] = np.array(classes, dtype=object)
        best = predictions.probabilities.argmax(1)
        names, confidence = list(classes), predictions.probabilities.max(1)
        if unsure is not None and trained.model.reader is not None and error is not None:
            about["error"], about["threshold"] = error, trained.model.reader.threshold(error)
            names += [UNASSIGNED] * (UNASSIGNED not in names)
            best = np.where(unsure, names.index(UNASSIGNED), best)
        obs[f"{key}_cell_type"] = pd.Categorical.from_codes(best, categories=names)
        obs[f"{key}_cell_type_confidence"] = confidence
        obsm[f"{key}_probabilities"] = predictions.probabilities
    if predictions.property is not None:
        about["property"] = trained.property_key
        obs[f"{key}_property"] = predictions.property
    replaced = []
    for name, values in {"obs": obs, "obsm": obsm, "uns": {key: about}}.items():
        replaced += [f"{name}[{each!r}]" for each in values if each in getattr(adata, name)]
        for each, value in values.items():
            getattr(adata, name)[each] = value  # looked up each time: writing into a view makes new tables
    return replaced
