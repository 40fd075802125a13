"""The cells that a finished run was trained on, read again: refused where they are no longer the
same.
"""

from __future__ import annotations

from pathlib import Path

from anndata import AnnData

from grn.cells.cells import Cells
from grn.cells.load import load_cells
from grn.config.schema import Config, DataConfig
from grn.evidence.states import States, states_of
from grn.model.saved import TrainedModel
from grn.runtime.errors import DataError, RunFolderError, VocabularyMismatch
from grn.runtime.tables import nearest_file


def cells_of_run(
    run: Path, config: Config, trained: TrainedModel, adata: AnnData | None = None
) -> Cells:
    """Return the cells of `config.data` (adata: these cells in memory instead), which are those
    that `trained` was trained on.

    Raises VocabularyMismatch where they have other genes, DataError where anything else that
    training read from them is different: a count, a label, the split, a setting of the data
    section.
    """
    if adata is None:
        refuse_lost_cells(run, config.data)
    cells, _ = load_cells(config.data, config.trainer.seed, adata)
    where = config.data.path if adata is None else "the AnnData"
    other_genes = cells.vocabulary != trained.vocabulary
    if other_genes or trained.cells not in (None, cells.digest):
        raise (VocabularyMismatch if other_genes else DataError)(
            f"The cells of {where}, or the settings in {run / 'config.yaml'} by which they are "
            f"read, are not those that {run} was trained on, so its network would be another; "
            "restore them, or train again."
        )
    return cells


def refuse_lost_cells(run: Path, settings: DataConfig) -> None:
    """Raise DataError where the file that a run was trained on is not where its
    configuration says.
    """
    path = Path(settings.path)
    if ":" in settings.path or path.exists():
        return
    seen = "" if path.is_absolute() else ", seen from this folder"
    raise DataError(
        f"The cells that {run} was trained on, {path}, do not exist{seen}",
        field="data.path",
        advice=f"put the file back, or set data.path in {run / 'config.yaml'} to "
        f"{nearest_file(path) or 'its place'}",
    )


def states_of_run(run: Path, cells: Cells, seed: int, trained: TrainedModel) -> States:
    """Return the states of the run's cells, which its model was trained with; found again where
    there are no labels.

    Raises RunFolderError where others are found: the search for groups may end differently on
    another machine.
    """
    states = states_of(cells, seed, genes_train=trained.model.genes_train)
    known = len(trained.model.share)
    if known != len(states):
        raise RunFolderError(
            f"The model of {run} knows {known} states of cells, and {len(states)} are found in the "
            "same cells by this version of the software; train again."
        )
    return states
