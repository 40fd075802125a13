"""Networks as tables of edges: of cells, without a run;
and of a run, its cell types and its cells.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grn.features.arguments.checked import Positive, Seed, checked
from grn.features.arguments.given_cells import cells_of_caller
from grn.features.run import Run, as_run, trained_of
from grn.features.train import (
    changed_fields,
    interrupted_as_python_is,
    random_states_kept,
    run_settings,
)
from grn.runtime.errors import ConfigError, DataError, nearest
from grn.runtime.run_folder import CONFIG

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

    from grn.cells.cells import Cells
    from grn.config.schema import Config
    from grn.evidence.states import States
    from grn.model.saved import TrainedModel


@checked({"data.path": "source", "data.label_key": "label"})
def network(
    source: AnnData | Run | Config | str | os.PathLike[str],
    *,
    cell: str | None = None,
    cell_type: str | None = None,
    data: AnnData | None = None,
    config: Config | str | os.PathLike[str] | None = None,
    label: str | None = None,
    group_key: str | None = None,
    state_key: str | None = None,
    regulators: Sequence[str] | str | os.PathLike[str] | None = None,
    genes: Positive | str | os.PathLike[str] | None = None,
    counts: str | None = None,
    seed: Seed | None = None,
    set: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> pd.DataFrame:
    """The network of cells, of one of their types, or of one cell, as a table of edges.

    Of cells, the model is trained as `grn.train` trains it, but on all of them: nothing is scored
    or written. Of a run, its network is read from its files.

    The network of one cell holds the derivatives of the model's signed blocks at the cell's own
    multiplicities, for a usual sd of each regulator within states, the mean over members; a
    regulator that the cell lacks has none. One cell alone says little: there is no confidence.

    Args:
        source: a Run or its folder; or cells: an AnnData or what `data.path` may name; or a
            configuration.
        cell: the name of a cell (of obs): its own network.
        cell_type: the name of a cell type, or of another state of cells: its network.
        data: the cells in memory, where a run was trained on an AnnData and `cell` is given.
        config: the configuration to start from where `source` are cells; None: the defaults.
        label: column of obs with the cell types, which cells are compared within; None: states are
            found.
        group_key: column of obs (donor, batch) whose cells are held out together.
        state_key: as for `grn.train`.
        regulators: as for `grn.train`.
        genes: as for `grn.train`.
        counts: as for `grn.train`.
        seed: of the training.
        set: any other fields by dotted name, `{"model.members": 10}`.
        quiet: print nothing; otherwise what was trained, in a few lines.

    Returns:
        A row per candidate edge, by q-value and then by falling |weight|, without pairs that fewer
        than `network.least_cells` cells have together: `source`, `target`, `weight` (balanced sds
        of the target per sd of the regulator; positive: it raises the target), `sd` (of the weight
        over the ensemble's members), `effect` (log2 fold change of the target for a doubling of the
        regulator, not shrunk) and `effect_se` (its standard error), `q_value` and `confidence` (0.5
        to 1, that the sign is right) with `network.false_discovery`, `between` (correlation of the
        states' levels, -1 to 1), `indirect` (share of the total effect through other regulators and
        the context), `cells` (that have both genes). Of one cell: `source`, `target`, `weight`, and
        only edges that are not 0, by falling |weight|.

    Raises:
        DataError: cells that cannot be used, no such cell or cell type, a run whose cells can no
            longer be read.
        ConfigError: an unknown field, a value that it cannot have, or options about cells where a
            run is given.
        RunFolderError: the run cannot be read.

    Source: arXiv 2505.09326.

    Examples:
        >>> import grn
        >>> tiny = {"data.simulated.cell_types": 2, "data.simulated.genes": 20}
        >>> tiny |= {"trainer.max_steps": 20}
        >>> edges = grn.network("simulated:", label="cell_type", set=tiny, quiet=True)
        >>> edges.columns.tolist()
        ['source', 'target', 'weight', 'sd', 'effect', 'effect_se',
         'q_value', 'confidence', 'programme', 'between', 'indirect', 'cells']
    """
    keywords = {
        "label_key": label,
        "group_key": group_key,
        "state_key": state_key,
        "regulators": regulators,
    }
    changes = changed_fields(keywords | {"genes": genes, "counts": counts, "seed": seed}, set)
    is_run = isinstance(source, Run) or (
        isinstance(source, (str, os.PathLike))
        and any((Path(source) / name).is_file() for name in (CONFIG, "card.json"))
    )
    unused = (
        [*changes, *(["config"] if config is not None else [])]
        if is_run
        else ["data"]
        if data is not None
        else []
    )
    if unused or (cell is not None and cell_type is not None):
        field, what = unused[0] if unused else "cell_type", "a run" if is_run else "cells"
        raise ConfigError(
            f"{{field}} does not go with {what}, or with cell=; leave it out", field=field
        )
    if is_run:
        return _of_run(as_run(source), cell, cell_type, data)  # type: ignore[arg-type]
    with interrupted_as_python_is(), random_states_kept():
        settings, adata, _ = run_settings(source, config, changes)
        return _of_cells(settings, adata, cell, cell_type, quiet)


def _of_run(
    run: Run, cell: str | None, cell_type: str | None, adata: AnnData | None
) -> pd.DataFrame:
    if cell is None:
        from grn.networks.run_files import read_edges

        return run.edges if cell_type is None else read_edges(run.folder, cell_type)[0]
    from grn.networks.cells_of_run import cells_of_run, states_of_run

    settings, trained = run.config, trained_of(run)
    cells = cells_of_run(run.folder, settings, trained, cells_of_caller(adata))
    states = states_of_run(run.folder, cells, settings.trainer.seed, trained)
    return _of_cell(trained, cells, states, cell)


def _of_cells(
    settings: Config, adata: AnnData | None, cell: str | None, cell_type: str | None, quiet: bool
) -> pd.DataFrame:
    """The network of cells by a model that is trained here, on all of them."""
    import numpy as np

    from grn.cells.load import load_cells
    from grn.cells.preprocessing.split import Split
    from grn.evidence.prior import prior_of
    from grn.evidence.states import states_of
    from grn.networks.build import first_evidence, network_of
    from grn.networks.run_files import refuse_unknown_type
    from grn.runtime.messages import show, silent
    from grn.training.building import folds_of_run
    from grn.training.run import fit_cells

    say = silent if quiet else show
    cells, _ = load_cells(settings.data, settings.trainer.seed, adata)
    states = states_of(
        cells,
        settings.trainer.seed,
        genes_train=bool(settings.objectives.masked_multiplicity.weight),
    )
    # What cannot be found is refused before the training.
    if cell is not None:
        _position(cells, cell)
    if cell_type is not None:
        refuse_unknown_type(cell_type, states.names if len(states) > 1 else ())
    if settings.network.prior is not None:
        prior_of(settings.network, cells)
    for line in (cells.counts_from, *cells.notes, states.summary()):
        say(line)
    first = (
        first_evidence(settings.network, settings.trainer, cells, states, say)
        if cell is None
        else None
    )
    trained = fit_cells(settings, cells, states, say)
    if cell is not None:
        return _of_cell(trained, cells, states, cell)
    every = Split(np.arange(len(cells)), np.zeros(0, int))
    fold = folds_of_run(
        cells, every, states, members=settings.model.members, seed=settings.trainer.seed
    )
    read = network_of(
        settings.network, settings.trainer, trained, cells, states, say, first, fold=fold
    )
    edges, by_type = read.tables(settings.network)
    if cell_type is None:
        return edges
    return (
        by_type[by_type["cell_type"] == cell_type].drop(columns="cell_type").reset_index(drop=True)
    )


def _of_cell(trained: TrainedModel, cells: Cells, states: States, cell: str) -> pd.DataFrame:
    """The edges of one cell's own network."""
    from grn.networks.read import read_cell
    from grn.networks.run_files import edges_of

    weight = read_cell(trained.model, cells, states, _position(cells, cell))
    return edges_of(weight, cells.vocabulary, trained.regulators)


def _position(cells: Cells, cell: str) -> int:
    """Return where a cell of this name is.

    Raises DataError.
    """
    found = (cells.obs_names == cell).nonzero()[0]
    if not len(found):
        near = nearest(cell, cells.obs_names[:5000])
        hint = f"did you mean {near!r}?" if near else f"names are like {str(cells.obs_names[0])!r}"
        raise DataError(
            f"There is no cell {cell!r} among the {len(cells)} cells", field="cell", advice=hint
        )
    return int(found[0])
