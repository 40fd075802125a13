"""Cell types and representations of cells, predicted by a run's model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from annotated_types import Interval

from grn.features.arguments.checked import checked
from grn.features.arguments.given_cells import (
    checked_anndata,
    into_memory_where_view_of_file,
    is_anndata,
    writing_into_views,
)
from grn.features.run import Run, as_run, trained_of
from grn.runtime.errors import ConfigError, check_known
from grn.runtime.messages import Say, show, silent

if TYPE_CHECKING:
    from anndata import AnnData

    from grn.config.schema import DataConfig
    from grn.features.predict.labels import LabelScores
    from grn.model.saved import TrainedModel

AnyRun: TypeAlias = Run | str | os.PathLike[str]


@checked()
def predict(
    cells: AnnData | str | os.PathLike[str],
    run: Run | str | os.PathLike[str] | None = None,
    *,
    model: str | None = None,
    key_added: str = "grn",
    copy: bool = False,
    counts: str | None = None,
    gene_key: str | None = None,
    orientation: Literal["cells_by_genes", "genes_by_cells"] | None = None,
    error: Annotated[float, Interval(gt=0, lt=1)] | None = None,
    map: Mapping[str, str] | None = None,
    labels: str | None = None,
    quiet: bool = False,
) -> AnnData:
    """Predicts the cell types of cells, and represents them as the model does, into their AnnData.

    Genes that the cells lack count as absent; those that the model does not know are not read. A
    cell without any count is "unassigned", with confidence 0. What is written, with KEY for
    `key_added`; what was there under these names is replaced:

        obs["KEY_cell_type"]             categorical: the most probable type
        obs["KEY_cell_type_confidence"]  its probability, 0 to 1
        obsm["KEY_probabilities"]        float32 [cells, types], columns in the order of
                                         uns["KEY"]["classes"]
        obsm["X_KEY"]                    float32 [cells, width]: the cell's representation, as for
                                         scanpy's neighbours

    Args:
        cells: an AnnData, cells x genes, or what `data.path` may name. Nothing is written to disk.
        run: the run whose model predicts: a Run, its folder, or its model folder.
        model: in place of a run, a model that comes with grn: `blood`
            (grn/pretrained/blood/README.md).
        key_added: KEY above.
        copy: write into a copy and leave `cells` as they are.
        counts: where the counts are: `X`, `raw`, `layer:NAME`, `recover`; None: as in training.
        gene_key: column of var with the gene names; None: as in training.
        orientation: what the rows of a text file are; None: as in training.
        error: the share of wrong labels that is accepted: less certain cells are "unassigned".
            Held-out cells of the training set the threshold, which is in uns["KEY"]; None: every
            cell has a label.
        map: other names for cell types, {"CD8 T": "T", ...}. Probabilities of types with one name
            are added, and given labels are renamed, too.
        labels: a column of obs with labels to compare with. uns["KEY"] then has `accuracy`,
            `macro_f1` and `confusion` (cells by given type, in the order of `given`, and by
            predicted type, in that of `predicted`).
        quiet: print nothing; otherwise what was found of the model's genes, in a few lines.

    Returns:
        `cells` themselves, or the copy, or what was read from the path.

    Raises:
        VocabularyMismatch: the cells have fewer than half of the model's genes.
        ConfigError: neither a run nor a model, or both.
        DataError: no such model, negative counts, log values given as counts, a column that is
            missing, ...
        RunFolderError: the run cannot be read.

    Source: arXiv 2505.09326.

    Examples:
        >>> import anndata, numpy, grn
        >>> counts = numpy.random.default_rng(0).poisson(2.0, (100, 20)).astype("float32")
        >>> adata = anndata.AnnData(counts, obs={"type": ["a", "b"] * 50})
        >>> run = grn.train(adata, label="type", max_steps=20, set={"model.members": 2}, quiet=True)
        >>> grn.predict(adata, run, quiet=True).obsm["X_grn"].shape
        (100, 64)
        >>> import scanpy as sc
        >>> pbmc = sc.datasets.pbmc68k_reduced()
        >>> blood = grn.predict(pbmc, model="blood", counts="recover", quiet=True)
        >>> str(blood.obs["grn_cell_type"].iloc[0])
        'CD14+ Monocyte'
    """
    from grn.cells.readers.registry import open_source

    say = silent if quiet else show
    chosen = run_or_pretrained(run, model, say)
    trained, config = model_for(
        chosen, cells, counts=counts, gene_key=gene_key, orientation=orientation
    )
    adata: AnnData = checked_anndata(cells if is_anndata(cells) else open_source(config))
    if copy and is_anndata(cells):
        adata = adata.to_memory() if adata.isbacked else adata.copy()
    into_memory_where_view_of_file(adata)
    with writing_into_views():
        annotate(
            adata, trained, config, key_added, say, error=error, names=map or {}, labels=labels
        )
    return adata


def predict_file(
    cells: Path,
    run: Path | None,
    output: Path,
    *,
    model: str | None = None,
    error: float | None = None,
    labels: str | None = None,
    say: Say,
    **reading: str | None,
) -> None:
    """`grn predict`: as `predict`, from a file to the new file `output`, of which more than X is
    never in memory.

    reading: counts, gene_key, orientation. With labels, the confusion goes to
        `confusion_of(output)`.
    """
    from grn.cells.readers.registry import source_in_file
    from grn.runtime.atomic import write_text
    from grn.runtime.h5ad import refuse_unwritable_parts, write_anndata
    from grn.runtime.tables import spreadsheet_safe

    trained, config = model_for(run_or_pretrained(run, model, say), cells, **reading)
    with source_in_file(config) as adata:
        refuse_unwritable_parts(adata, str(cells))
        replaced, scores = annotate(
            adata, trained, config, "grn", say, error=error, names={}, labels=labels
        )
        if replaced:
            say(
                f"{output} has new values of {', '.join(replaced)}; the old values are still in "
                f"{cells}."
            )
        write_anndata(output, adata)
    if scores is not None:
        write_text(confusion_of(output), spreadsheet_safe(scores.confusion).to_csv())
        say(f"Cells by given and by predicted type are in {confusion_of(output)}.")
    say(f"{adata.n_obs} cells with their predictions are in {output}.")


def run_or_pretrained(run: AnyRun | None, model: str | None, say: Say) -> AnyRun:
    """The run, or the folder of the pretrained model of this name.

    Raises ConfigError, DataError.
    """
    if run is not None and model is None:
        return run
    if model is None or run is not None:
        raise ConfigError(
            "Cells are labelled by a run or by {field}: give one of the two", field="model"
        )
    home = Path(__file__).parents[2] / "pretrained"
    check_known(
        model, sorted(each.name for each in home.iterdir()), "grn", "pretrained model", "model"
    )
    say(
        f"What the model {model!r} was trained on, how good it is and its limits: "
        f"{home / model / 'README.md'}"
    )
    return home / model


def confusion_of(output: Path) -> Path:
    return output.with_name(f"{output.stem}_confusion.csv")


def model_for(
    run: AnyRun, cells: AnnData | str | Path, **options: str | None
) -> tuple[TrainedModel, DataConfig]:
    """The model of a run, and the configuration by which it reads the cells. options: of
    `data_config`.
    """
    from grn.cells.readers.registry import MEMORY
    from grn.features.predict.predictions import data_config

    opened = as_run(run)
    path = Path(MEMORY if is_anndata(cells) else cells)
    trained = trained_of(opened)
    return trained, data_config(trained, opened.folder, path, **options)


def annotate(
    adata: AnnData,
    trained: TrainedModel,
    config: DataConfig,
    key: str,
    say: Say,
    *,
    error: float | None,
    names: Mapping[str, str],
    labels: str | None,
) -> tuple[list[str], LabelScores | None]:
    """Write predictions for the cells of `adata` into it; arguments as for `predict`, whose `map`
    is `names`.

    Returns the names of replaced values, and the scores against the given labels.
    Raises UserError before anything is written.
    """
    import numpy as np

    from grn.features.predict.labels import given_labels, merged, refuse_unused, score_labels
    from grn.features.predict.predictions import (
        READ,
        UNASSIGNED,
        add_predictions,
        cells_by_type,
        pieces_of,
        predict_pieces,
    )

    identity = trained.model.identity
    calibrated = len(identity.confidence)
    for field, value, able in (
        ("error", error, calibrated),
        ("map", names, True),
        ("labels", labels, True),
    ):
        if value and not (able and trained.classes):
            raise ConfigError(
                "{field} is about cell types, and the model was trained without labels", field=field
            )
    given = None if labels is None else given_labels(adata, labels, {})
    refuse_unused(
        names,
        trained.classes,
        () if given is None else [name for name in given if name is not None],
    )
    cells = pieces_of(adata, trained, config, READ)
    for line in (cells.counts_from, *cells.notes):
        say(line)
    if not trained.classes:
        say("No cell types are predicted, because the model was trained without labels.")
    predictions, empty = predict_pieces(trained, cells)
    if empty.any():
        say(
            f"{empty.sum()} of {len(cells)} cells have none of the model's genes: they are "
            f"{UNASSIGNED}."
        )
    unassigned, classes = empty, trained.classes
    if error is not None and predictions.probabilities is not None:
        # Of the model's own types: renamed ones are sums, and no less often right.
        unassigned = empty | (predictions.probabilities.max(1) < identity.threshold(error))
        left = int(unassigned.sum())
        say(
            f"{left} of {len(cells)} cells are {UNASSIGNED}, so that at most {error:.1%} of the "
            "others are wrong."
        )
    if names and predictions.probabilities is not None:
        probabilities, classes = merged(predictions.probabilities, classes, names)
        predictions = replace(predictions, probabilities=probabilities)
    scores, found = None, np.zeros(0, dtype=object)
    if predictions.probabilities is not None:
        found = np.array(classes, dtype=object)[predictions.probabilities.argmax(1)]
        found = np.where(unassigned, UNASSIGNED, found)
        say(cells_by_type(found))
    if labels is not None and len(found):
        scores = score_labels(given_labels(adata, labels, names), found, classes, UNASSIGNED)
        say(scores.sentence)
    replaced = add_predictions(
        adata, predictions, trained, key, classes=classes, error=error, unassigned=unassigned
    )
    if scores is not None:  # names of types, which may hold a "/", are values and no keys
        table = scores.confusion
        adata.uns[key] |= {
            "given": table.index.to_numpy(object),
            "predicted": table.columns.to_numpy(object),
        }
        adata.uns[key] |= {"confusion": table.to_numpy(np.int64)}
        adata.uns[key] |= {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1}
    return replaced, scores
