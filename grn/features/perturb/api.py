"""Knock-outs, knock-downs and overexpression as a model expects them, and a screen over all
regulators.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Interval

from grn.features.arguments.checked import Share, checked
from grn.features.arguments.given_cells import cells_of_caller
from grn.features.run import Run, as_run, trained_of
from grn.runtime.messages import show, silent

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

    from grn.features.perturb.perturbed import Subject

Steps = Annotated[int, Interval(ge=1, le=1000)]


@checked()
def perturb(
    run: Run | str | os.PathLike[str],
    *,
    knock_out: str | Sequence[str] = (),
    knock_down: str | Sequence[str] = (),
    overexpress: str | Sequence[str] = (),
    cell_type: str | None = None,
    where: Mapping[str, str] | None = None,
    steps: Steps = 1,
    remaining: Share = 0.5,
    quantile: Share = 0.95,
    basis: str | None = None,
    data: AnnData | None = None,
) -> AnnData:
    """What a trained model expects to change where regulators are knocked out, knocked down or
    overexpressed.

    The model's signed blocks predict every gene twice in each cell, from the regulators as they
    were measured and from the perturbed ones; the difference is the change. The model's penalty
    shrinks it, in blood to next to nothing. So where a perturbed regulator has a certain edge to a
    gene, its direct change is another, which is not shrunk: the edge's `effect`, as a slope, times
    the change of the regulator. The edge is that of the cells' state where it is certain there or
    clearly differs, else the one over all cells. The mean multiplicity of no gene falls below 0.

    One step reads direct effects. With more steps, regulators that have changed act on their own
    targets: 20 are about where nothing moves any more. These further steps are the model's alone,
    along certain edges, too. The identity token then reads the changed cells.

    Where the run's cells were intervened on (data.intervention_key), genes that were have the
    effect of their own intervention. That of other regulators is learned from those: from what goes
    with the regulator in the cells, what all interventions share, and a linear model from gene
    embeddings, as far as each told the others' effects (docs/interventions.md). Observed cells
    alone do not distinguish a cause from a correlation (docs/usage.md): without interventions, the
    size of a knock-out and its interval are those of an association.

    Args:
        run: a Run, or its folder. Its configuration names the cells, which are read again.
        knock_out: regulators whose multiplicity becomes 0: a name or several.
        knock_down: regulators of whose counts the share `remaining` is left.
        overexpress: regulators that are raised to the quantile `quantile` of their multiplicity
            among the cells that have them; cells above it stay as they are.
        cell_type: a label: the cells of this type alone are perturbed. None: all cells.
        where: columns of obs and the value that chosen cells have there, as {"condition": "stim"}.
        steps: of propagation, at least 1.
        remaining: see `knock_down`, 0 to 1.
        quantile: see `overexpress`, 0 to 1.
        basis: an embedding in obsm of the cells, as "X_umap", in which shifts are wanted.
        data: the cells, where the run was trained on an AnnData in memory.

    Returns:
        The chosen cells x the run's genes, multiplicities in X:

            var["grn_change"]       mean change of the expected multiplicity
            var["grn_effect"]       the same in sds of the gene
            var["grn_sd"]           sd of the effect over the ensemble members, NaN of one member
                                    alone; with a certain edge, its standard error
            var["grn_before"]       mean multiplicity before
            var["grn_perturbed"]    whether the gene is one of those that were perturbed
            var["grn_low"], var["grn_high"]
                                    the 95 % interval of the effect, where a perturbed regulator has
                                    a certain edge to the gene in all of these cells, else NaN; not
                                    of a run without effects of edges
            var["grn_size"]         of a run with interventions, where all genes have an interval:
                                    the size that the effect is expected to have whatever its sign,
                                    which ranks the genes that respond
            layers["grn_change"]
            float32 [cells, genes]: expected change in each cell; where a
                                    gene was not counted, it may be below 0
            obsm["X_grn"]           each cell's representation before, as from grn.predict
            obsm["X_grn_shift"]     how far it moves
            obsm["<basis>_shift"]   with `basis`: the direction in that embedding, towards
                                    neighbours that lie there
            obs["grn_cell_type_before"], obs["grn_cell_type_after"],
            obsm["grn_probabilities_change"]
                                    with cell types: what the identity token says
            uns["grn_perturb"]      what was perturbed, steps, model; `sizes`, a sentence: which
                                    changes are not shrunk; of a run with interventions
                                    never_intervened, the genes of which no cell had this
                                    intervention: their effects are learned from others

    Raises:
        DataError: a gene that is no regulator, no such cell type, no such column, cells that have
            changed.
        ConfigError: nothing is perturbed, or the model predicts no genes.
        RunFolderError: `run` has no model or cannot be read.

    Source: arXiv 2505.09326; La Manno et al. 2018 (shifts in an embedding).

    Examples:
        >>> import grn
        >>> tiny = {"data.simulated.cell_types": 2, "data.simulated.genes": 20, "model.members": 2}
        >>> run = grn.train("simulated:", label="cell_type", max_steps=20, set=tiny, quiet=True)
        >>> gene = run.edges["source"][0]
        >>> cells = grn.perturb(run, knock_out=gene, cell_type="type 1")
        >>> cells.var.columns.tolist()
        ['grn_change', 'grn_effect', 'grn_sd', 'grn_before', 'grn_perturbed', 'grn_low', 'grn_high']
    """
    from grn.features.perturb.perturbed import Plan, perturb_cells, perturbed_anndata

    out, down, over = (
        (genes,) if isinstance(genes, str) else tuple(genes)
        for genes in (knock_out, knock_down, overexpress)
    )
    plan = Plan(out, down, over, remaining, quantile)
    subject = _subject(run, data)
    found = perturb_cells(subject, plan, subject.rows(cell_type, where), steps)
    return perturbed_anndata(subject, plan, found, steps, basis)


@checked()
def screen(
    run: Run | str | os.PathLike[str],
    cell_type: str,
    towards: str,
    *,
    kind: Literal["knock_out", "knock_down", "overexpress"] = "knock_out",
    steps: Steps = 1,
    data: AnnData | None = None,
    quiet: bool = False,
) -> pd.DataFrame:
    """Perturbs every regulator in turn in cells of one type, and ranks them by how far cells move
    towards another type.

    Changes are the model's own, which its penalty shrinks: compare regulators, and do not read the
    shares as sizes. Of a run with interventions, those of regulators that nobody intervened on are
    learned as in `perturb`.

    Args:
        run: a Run, or its folder. Its configuration names the cells, which are read again.
        cell_type: the label of the cells that are perturbed, at most 200 of them.
        towards: the label that they should move to.
        kind: `knock_out`, `knock_down` or `overexpress`, as in `perturb`.
        steps: of propagation, at least 1.
        data: the cells, where the run was trained on an AnnData in memory.
        quiet: print nothing; otherwise how far the screen is, now and then.

    Returns:
        A row for each regulator, those that help most first: `gene`; `towards`, the share of the
        way between the types' mean cells, in sds of the genes, that the other genes go (1: all of
        it, below 0: away); `sd` of it over the ensemble members; `size`, the root mean square of
        the effects on other genes, in sds; `before`, the mean multiplicity in these cells;
        `strongest` and `strongest_effect`, the gene that changes most.

    Raises:
        DataError: no such cell type, both the same, or cells that have changed.
        ConfigError: the model predicts no genes.
        RunFolderError: `run` has no model or cannot be read.

    Source: Kamimoto et al. 2023 (CellOracle), for the idea of a screen in silico.

    Examples:
        >>> import grn
        >>> tiny = {"data.simulated.cell_types": 2, "data.simulated.genes": 20, "model.members": 2}
        >>> run = grn.train("simulated:", label="cell_type", max_steps=20, set=tiny, quiet=True)
        >>> table = grn.screen(run, "type 1", "type 2", quiet=True)
        >>> table.columns.tolist()
        ['gene', 'towards', 'sd', 'size', 'before', 'strongest', 'strongest_effect']
    """
    from grn.features.perturb.perturbed import screen_regulators

    subject = _subject(run, data)
    return screen_regulators(
        subject, cell_type, towards, kind=kind, steps=steps, say=silent if quiet else show
    )


def _subject(run: Run | str | os.PathLike[str], data: AnnData | None) -> Subject:
    from grn.features.perturb.perturbed import Subject

    opened = as_run(run)
    return Subject.of_run(opened.folder, opened.config, trained_of(opened), cells_of_caller(data))
