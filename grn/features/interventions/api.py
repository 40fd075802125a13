"""How well a run predicts interventions, in cells that it has not seen or that it would have to do
without.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grn.features.arguments.checked import checked
from grn.features.arguments.given_cells import cells_of_caller
from grn.features.run import Run, as_run, trained_of
from grn.runtime.errors import ConfigError
from grn.runtime.messages import show, silent

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData


@checked()
def evaluate_interventions(
    run: Run | str | os.PathLike[str],
    *,
    leave_out: str | Sequence[str] = (),
    data: AnnData | None = None,
    quiet: bool = False,
) -> pd.DataFrame:
    """Scores what a run expects of interventions against what was measured, beside simple methods.

    Without `leave_out`, in the run's test cells, of interventions that it was trained on. With it,
    a new model is trained for each intervention without its cells, which takes as long as the run
    did.

    Args:
        run: a Run, or its folder, trained with data.intervention_key. Its configuration names the
            cells.
        leave_out: interventions that are left out in turn: names of genes, `A+B` for cells with
            both, or `all`.
        data: the cells, where the run was trained on an AnnData in memory.
        quiet: print nothing; otherwise how far the trainings are.

    Returns:
        A row for each intervention and method (grn; `mean change`, what was measured in the
        training cells; `mean of all` others; pearson, ridge, `linear, embeddings`; `sum of both`):
        `genes` that respond (|z| > 4 against control cells), `auroc` and `early_precision` of
        these, `signs` that are right among them, `rank_correlation` with the measured z, and
        `error`, squared, where 1 is that of predicting no change. Without leave_out,
        `pandas.DataFrame(table.attrs["networks"])` has the scores of the run's edges, of Pearson's
        and ridge's: as in CausalBench `wasserstein` and `false_omission`, and as in geneRNIB
        `tf_precision` and `tf_recall`.

    Raises:
        ConfigError: the run's cells were not intervened on, or its model predicts no genes.
        DataError: an intervention that no cell has, too few test cells, cells that have changed.
        RunFolderError: `run` has no model or cannot be read.

    Source: Ahlmann-Eltze et al. 2025; Chevalley et al. 2025 (CausalBench); geneRNIB.

    Examples:
        >>> import grn
        >>> tiny = {"data.simulated.cells": 400, "data.simulated.genes": 30}
        >>> tiny |= {"data.simulated.interventions": 0.2, "data.test_fraction": 0.5}
        >>> tiny |= {"data.intervention_key": "intervention", "model.members": 2}
        >>> run = grn.train("simulated:", max_steps=20, set=tiny, quiet=True)
        >>> table = grn.evaluate_interventions(run)
        >>> sorted(table["method"].unique())
        ['grn', 'mean change', 'mean of all']
    """
    from grn.cells.load import load_cells
    from grn.cells.readers.registry import open_source
    from grn.features.interventions.networks import network_scores
    from grn.features.interventions.scores import left_out, seen_interventions
    from grn.features.perturb.perturbed import Subject
    from grn.networks.baselines import pearson, ridge
    from grn.training.run import fit_cells

    opened, say = as_run(run), silent if quiet else show
    given = cells_of_caller(data)
    subject = Subject.of_run(opened.folder, opened.config, trained_of(opened), given)
    cells, done = subject.cells, subject.cells.interventions
    if done is None:
        raise ConfigError(
            f"The cells of {opened.folder} were not intervened on ({{field}} is null)",
            field="data.intervention_key",
        )
    names = [leave_out] if isinstance(leave_out, str) else list(leave_out)
    if names:
        names = list(done.names) if names == ["all"] else names
        source = open_source(subject.config.data) if given is None else given
        return left_out(subject.config, source, names, fit_cells, say)
    config = subject.config
    _, split = load_cells(config.data, config.trainer.seed, given)
    if not len(split.test):
        raise ConfigError("The run has no test cells ({field} is 0)", field="data.test_fraction")
    table = seen_interventions(subject, split.test)
    genes = [
        name
        for position, name in enumerate(cells.vocabulary)
        if position not in set(done.key.tolist())
    ]
    training = cells.multiplicity[split.train][:, : len(genes)].toarray()
    regulators = [name for name in done.names if name in genes]
    networks = {"grn": opened.edges}
    if regulators:
        networks |= {way.__name__: way(training, genes, regulators) for way in (pearson, ridge)}
    table.attrs["networks"] = network_scores(networks, cells, split.test).to_dict("records")
    return table
