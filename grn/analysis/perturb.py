"""The perturbation of regulators in chosen cells: changes of genes, shifts of the cells, and a screen.

In a screen, every regulator is perturbed in turn in the cells of one type: which ones move them towards another type?

    towards_j = sum_i effect_ij d_i / sum_i d_i^2          d_i: sds between the types' mean multiplicities of gene i

is the share of the way from the first type to the second that the other genes go when regulator j is perturbed: 1 is
all of it, below 0 is away. The perturbed gene itself does not count.

Letters: P members, C cells, N genes, D width of a representation, B dimensions of an embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from anndata import AnnData
from scipy import sparse

from grn.analysis.perturb_mechanism import cell_inputs
from grn.analysis.perturb_plan import KINDS, Plan, Subject
from grn.analysis.predict import Predictions, predict_cells
from grn.cells.cells import Cells
from grn.cells.obs import numbers_in_obsm
from grn.cells.readers.registry import open_source
from grn.errors import DataError
from grn.messages import Say, at_most_every, silent

NEIGHBOURS = 30  # cells among which a shift finds its direction in an embedding
SCREENED = 200  # cells of a type, in which each regulator is perturbed: a mean effect settles soon
MESSAGE_EVERY_S = 15
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
        **{kind: np.array(getattr(plan, kind), dtype=object) for kind in KINDS},
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
        known = ", ".join(map(repr, source.obsm)) or "none"
        hint = f"did you mean 'X_{basis}'?" if f"X_{basis}" in source.obsm else f"it has {known}."
        raise DataError(f"{{field}} is {basis!r}, which is not in obsm of the cells; {hint}", field="basis")
    return numbers_in_obsm(source.obsm[basis], basis)[:cells]


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


def screen_regulators(
    subject: Subject, cell_type: str, towards: str, *, kind: str = "knockout", steps: int = 1, say: Say = silent
) -> pd.DataFrame:
    """A row for each regulator, by falling share of the way from `cell_type` to `towards`.

    kind: knockout | knockdown | overexpress. Columns: gene; towards (see above); sd: of it over the ensemble members;
    size: root mean square of the effects on the other genes, in sds; before: mean multiplicity in the cells;
    strongest: the gene that changes most, with its effect in `strongest_effect`. Raises DataError.
    """
    here, there = subject.rows(cell_type), subject.rows(towards)
    mechanism, cells = subject.mechanism, subject.cells
    sd, vocabulary = mechanism.sd.numpy().astype(np.float64), np.array(cells.vocabulary, dtype=object)
    means = [np.asarray(cells.multiplicity[rows].mean(0)).ravel() for rows in (here, there)]
    way = (means[1] - means[0]) / sd
    if not way.any():
        raise DataError(f"Cell types {cell_type!r} and {towards!r} have the same levels; name two that differ.")
    rows = here if len(here) <= SCREENED else here[np.linspace(0, len(here) - 1, SCREENED).round().astype(int)]
    measured, basal, states = cell_inputs(mechanism, cells, subject.states, rows)
    regulators, progress = mechanism.layer.regulators.numpy(), at_most_every(MESSAGE_EVERY_S, say)
    found = []
    for column, position in enumerate(regulators):
        gene = str(vocabulary[position])
        before = float(measured[:, column].mean())
        if kind == "overexpress" and not cells.multiplicity[:, [position]].nnz:
            continue
        values = Plan.of_one(kind, gene).new_values(gene, cells, rows, subject.logarithmic)
        effect = np.zeros((len(mechanism.members), len(vocabulary)))
        for part in mechanism.slices(len(rows)):
            fixed = {column: values[part]}
            effect += mechanism.effects(measured[part], basal[part], states[part], fixed, steps).sum(1).double().numpy()
        effect /= len(rows)
        effect[:, position] = 0
        others = np.arange(len(way)) != position
        share = effect @ way / np.square(way[others]).sum()
        mean = effect.mean(0)
        most = int(np.abs(mean).argmax())
        spread = share.std(ddof=1) if len(share) > 1 else np.nan
        size = float(np.sqrt(np.square(mean[others]).mean()))
        found.append((gene, share.mean(), spread, size, before, vocabulary[most] if mean[most] else "", mean[most]))
        progress(f"Screening the regulators: {100 * (column + 1) // len(regulators)} % are done.")
    names = ["gene", "towards", "sd", "size", "before", "strongest", "strongest_effect"]
    table = pd.DataFrame(found, columns=names)
    return table.sort_values("towards", ascending=False, kind="stable").reset_index(drop=True)
