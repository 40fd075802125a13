"""The perturbation of regulators in chosen cells: changes of genes, and shifts of the cells' representations.

Letters: P members, C cells, N genes, D width of a representation, B dimensions of an embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from anndata import AnnData
from scipy import sparse

from grn.analysis.perturbation.changes import cell_inputs
from grn.analysis.perturbation.subject import Subject
from grn.analysis.perturbation.what_is_done import Plan, check_steps
from grn.analysis.predict import Predictions, predict_cells
from grn.cells.cells import Cells
from grn.cells.obs import numbers_in_obsm
from grn.cells.readers.registry import open_source
from grn.errors import DataError

NEIGHBOURS = 30  # cells among which a shift finds its direction in an embedding
SHARPNESS = 0.1  # temperature of the cosines: as in the projections of RNA velocity


@dataclass(frozen=True)
class Perturbed:
    """table: see `gene_table`.   change [C, N]: of each cell's expected multiplicities, float32, 0 or more left.
    rows [C]: the cells."""

    table: pd.DataFrame
    change: np.ndarray
    rows: np.ndarray


def perturb_cells(subject: Subject, plan: Plan, rows: np.ndarray, steps: int = 1) -> Perturbed:
    """The changes in the cells `rows` after a perturbation. steps: of propagation, at least 1. Raises DataError."""
    check_steps(steps)
    mechanism, cells = subject.mechanism, subject.cells
    regulators = mechanism.layer.regulators.numpy()
    columns = plan.columns(cells.vocabulary, regulators)
    fixed = {column: plan.new_values(gene, cells, rows, subject.logarithmic) for gene, column in columns.items()}
    measured, basal, states = cell_inputs(mechanism, cells, subject.states, rows)
    before = cells.multiplicity[rows]
    change = np.empty(before.shape, np.float32)
    total = np.zeros((len(mechanism.members), before.shape[1]))
    for part in mechanism.slices(len(rows)):
        of_part = {column: values[part] for column, values in fixed.items()}
        effect = mechanism.effects(measured[part], basal[part], states[part], of_part, steps)
        for column, values in of_part.items():
            effect[..., regulators[column]] = (values - measured[part, column]) / mechanism.sd[regulators[column]]
        total += effect.sum(1).double().numpy()
        change[part] = (effect.mean(0) * mechanism.sd).numpy()
    table = gene_table(cells.vocabulary, total / len(rows), mechanism.sd.numpy(), before, plan)
    return Perturbed(table, change, rows)


def gene_table(
    vocabulary: tuple[str, ...], effect: np.ndarray, sd: np.ndarray, before: sparse.csr_matrix, plan: Plan
) -> pd.DataFrame:
    """A row for each gene: those that are perturbed first, then by falling |effect|.

    effect [P, N]: of each member, in sds.   before [C, N]: multiplicities. Columns: gene; change: of the expected
    multiplicity; effect: the same in sds of the gene; sd: of the effect over the ensemble members, NaN where one alone
    predicts multiplicities; before: mean multiplicity in the cells; perturbed.
    """
    mean = effect.mean(0)
    spread = effect.std(0, ddof=1) if len(effect) > 1 else np.full(len(mean), np.nan)
    perturbed = np.isin(vocabulary, plan.genes)
    table = pd.DataFrame(
        {
            "gene": pd.Series(vocabulary, dtype=object),
            "change": mean * sd,
            "effect": mean,
            "sd": np.where(perturbed, 0.0, spread),
            "before": np.asarray(before.mean(0)).ravel(),
            "perturbed": perturbed,
        }
    )
    return table.iloc[np.lexsort([-np.abs(mean), ~perturbed])].reset_index(drop=True)


def perturbed_anndata(subject: Subject, plan: Plan, found: Perturbed, steps: int, basis: str | None = None) -> AnnData:
    """The chosen cells with what a perturbation changes; see grn.perturb for the names. Raises DataError."""
    cells, trained, rows = subject.cells, subject.trained, found.rows
    source = open_source(subject.config.data) if subject.adata is None else subject.adata
    embedding = _embedding(source, basis, len(cells))
    after = sparse.csr_matrix(np.maximum(cells.multiplicity[rows].toarray() + found.change, 0))
    here, there = predict_cells(trained, _taken(cells, rows)), predict_cells(trained, _taken(cells, rows, after))
    shift = there.representation - here.representation
    table = found.table.set_index("gene").reindex(list(cells.vocabulary))
    adata = AnnData(
        cells.multiplicity[rows],
        obs=source.obs.iloc[rows].copy(),
        var=table.rename(columns=lambda name: f"grn_{name}"),
        layers={"grn_change": found.change},
        obsm={"X_grn": here.representation, "X_grn_shift": shift},
    )
    adata.var_names = list(cells.vocabulary)
    adata.uns["grn_perturb"] = {
        "perturbation": plan.described(),
        "knockout": np.array(plan.knockout, dtype=object),
        "knockdown": np.array(plan.knockdown, dtype=object),
        "overexpress": np.array(plan.overexpress, dtype=object),
        "steps": steps,
        "model_hash": trained.hash,
        "change": "expected change of the multiplicity; effect: in sds of the gene over the training cells",
    }
    _add_types(adata, trained.classes, here, there)
    if embedding is not None and basis is not None:
        everyone = predict_cells(trained, cells).representation
        adata.obsm[basis] = embedding[rows]
        adata.obsm[f"{basis}_shift"] = shift_in_embedding(shift, here.representation, everyone, embedding, rows)
    return adata


def _add_types(adata: AnnData, classes: tuple[str, ...], here: Predictions, there: Predictions) -> None:
    """obs: the predicted type before and after; obsm: the change of each type's probability."""
    if here.probabilities is None or there.probabilities is None:
        return
    for name, found in (("before", here), ("after", there)):
        assert found.probabilities is not None
        codes = found.probabilities.argmax(1)
        adata.obs[f"grn_cell_type_{name}"] = pd.Categorical.from_codes(codes, categories=list(classes))
    adata.obsm["grn_probabilities_change"] = there.probabilities - here.probabilities
    adata.uns["grn_perturb"]["classes"] = np.array(classes, dtype=object)


def _taken(cells: Cells, rows: np.ndarray, multiplicity: sparse.csr_matrix | None = None) -> Cells:
    """Some of the cells, with other multiplicities where they are given."""
    return replace(
        cells,
        multiplicity=cells.multiplicity[rows] if multiplicity is None else multiplicity,
        labels=cells.labels[rows],
        property=cells.property[rows],
        obs_names=cells.obs_names[rows],
        basal=cells.basal[rows],
        groups=None if cells.groups is None else cells.groups[rows],
        state=None if cells.state is None else cells.state[rows],
    )


def _embedding(source: AnnData, basis: str | None, cells: int) -> np.ndarray | None:
    if basis is None:
        return None
    if basis not in source.obsm:
        if f"X_{basis}" in source.obsm:
            raise DataError(f"--basis is {basis!r}, which is not in obsm of the cells; did you mean 'X_{basis}'?")
        known = ", ".join(map(repr, source.obsm)) or "none, so leave it out, or compute one with scanpy before"
        raise DataError(f"--basis is {basis!r}, and the cells have no such embedding in obsm; they have {known}.")
    found = numbers_in_obsm(source.obsm[basis], basis)
    if found.ndim != 2:
        raise DataError(f"obsm[{basis!r}] has {found.ndim} axes, and an embedding has 2; choose another --basis.")
    return found[:cells]


def shift_in_embedding(
    shift: np.ndarray, here: np.ndarray, everyone: np.ndarray, embedding: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Where cells move in an embedding that is not the model's own: [C, B], towards the neighbours that lie there.

    shift, here [C, D]: in the model's representation, as everyone [all cells, D].   embedding [all cells, B].   rows
    [C]: of `here` among all cells. Neighbours are weighed by exp(cosine(shift, neighbour - cell) / SHARPNESS), less the
    mean weight. A cell that does not move stays. Source: La Manno et al. 2018, eq. for the projection of velocities.
    """
    from sklearn.neighbors import NearestNeighbors

    count = min(NEIGHBOURS + 1, len(everyone))
    near = NearestNeighbors(n_neighbors=count).fit(everyone).kneighbors(here, return_distance=False)
    moved = np.zeros((len(rows), embedding.shape[1]), np.float32)
    for number, (row, neighbours) in enumerate(zip(rows, near, strict=True)):
        others = neighbours[neighbours != row]
        away = everyone[others] - here[number]
        size = np.linalg.norm(away, axis=1) * np.linalg.norm(shift[number])
        if not len(others) or not size.any():
            continue
        cosine = np.divide(away @ shift[number], size, out=np.zeros(len(others)), where=size > 0)
        weight = torch.softmax(torch.as_tensor(cosine / SHARPNESS), 0).numpy() - 1 / len(others)
        moved[number] = weight @ (embedding[others] - embedding[row])
    return moved
