"""The perturbation of regulators in chosen cells: changes of genes, shifts of cells, and a screen.

In a screen, every regulator is perturbed in turn in the cells of one type: which ones move them
towards another type?

    towards_j = sum_i effect_ij d_i / sum_i d_i^2

is the share of the way from the first type to the second that the other genes go when regulator j
is perturbed: 1 is all of it, below 0 is away. d_i: sds between the types' mean multiplicities of
gene i. The perturbed gene itself does not count.

Letters: P members, C cells, N genes, D width of a representation, B dimensions of an embedding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from anndata import AnnData
from scipy import sparse
from scipy.special import ndtr
from torch import Tensor

from grn.cells.cells import Cells
from grn.cells.load import read_columns
from grn.cells.readers.registry import open_source
from grn.config.schema import Config
from grn.evidence.caused import NORMAL, Caused, caused_effects
from grn.evidence.states import States
from grn.features.perturb.certain_slopes import certain_slopes
from grn.features.perturb.mechanism import effects, slices
from grn.features.perturb.unmade import Unmade, at_one_total
from grn.features.predict.predictions import predict_cells
from grn.model.regulation import Model
from grn.model.saved import TrainedModel
from grn.networks.cells_of_run import cells_of_run, states_of_run
from grn.runtime.devices import own_device
from grn.runtime.errors import ConfigError, DataError, check_known
from grn.runtime.messages import Say, silent

KINDS = {"knock_out": "knock-out", "knock_down": "knock-down", "overexpress": "overexpression"}
NEIGHBOURS = 30  # cells among which a shift finds its direction in an embedding
SCREENED = 200  # cells of a type, in which each regulator is perturbed: a mean effect settles soon
MESSAGES = 10  # of progress
FURTHEST = 2.0  # as far as in interventions that were made, what was learned from them is believed
SHARPNESS = 0.1  # temperature of the cosines: as in the projections of RNA velocity


@dataclass(frozen=True)
class Plan:
    """Names of the regulators that are perturbed, by kind.

    remaining: share of a knocked-down gene's counts that is left.
    quantile: overexpression raises a gene, in every cell, to this quantile of its multiplicity
        among the cells that have it; cells above it stay as they are.
    """

    knock_out: tuple[str, ...] = ()
    knock_down: tuple[str, ...] = ()
    overexpress: tuple[str, ...] = ()
    remaining: float = 0.5
    quantile: float = 0.95

    def __post_init__(self) -> None:
        if not self.genes:
            raise ConfigError(
                "Nothing is perturbed: name a regulator to knock out, to knock down or to "
                "overexpress."
            )

    @property
    def genes(self) -> tuple[str, ...]:
        return (*self.knock_out, *self.knock_down, *self.overexpress)

    def described(self) -> str:
        done = {word: getattr(self, kind) for kind, word in KINDS.items()}
        return "; ".join(f"{word} of {', '.join(genes)}" for word, genes in done.items() if genes)

    def fixed(
        self, cells: Cells, regulators: np.ndarray, rows: np.ndarray, logarithmic: bool
    ) -> dict[int, Tensor]:
        """What the keys of perturbed genes are set to in the cells `rows`: column among the
        regulators [R] -> [C].

        A gene that was intervened on in the same way has its guides' key besides. The guides of
        other genes stay as they are.
        Raises DataError for a gene that has no key.
        """
        done, found = cells.interventions, {}
        wanted = set(self.genes)
        if done is not None:
            of_kind = self.of_kind(done.kind)
            of_guides = torch.as_tensor(cells.multiplicity[rows][:, done.key].toarray()).unbind(1)
            keys = zip(done.names, done.key.tolist(), done.place.tolist(), of_guides, strict=True)
            for name, key, place, given in keys:
                column = int(np.searchsorted(regulators, key))
                found[column] = torch.ones_like(given) if name in of_kind else given
                if name in wanted and place not in regulators:  # the guides' key is its only one
                    if name not in of_kind:
                        raise DataError(
                            f"Of {name!r}, which is not a counted regulator, only a {done.kind} is "
                            "known."
                        )
                    wanted.remove(name)
        column_of = {
            cells.vocabulary[position]: column
            for column, position in enumerate(regulators.tolist())
        }
        for gene in wanted:
            if gene in cells.vocabulary and gene not in column_of:
                raise DataError(
                    f"{gene!r} is not a regulator of this run; train with it in data.regulators."
                )
            check_known(gene, column_of, "The run", "regulator")
        return found | {
            column_of[gene]: self.new_values(gene, cells, rows, logarithmic) for gene in wanted
        }

    def of_kind(self, word: str) -> tuple[str, ...]:
        """The genes of one kind of perturbation, as KINDS calls it."""
        return getattr(self, next(kind for kind, name in KINDS.items() if name == word))

    def never_intervened(self, cells: Cells) -> list[str]:
        """The genes of which the cells have no intervention of the kind that is wanted."""
        done = cells.interventions
        of_kind = () if done is None else self.of_kind(done.kind)
        return [
            gene
            for gene in self.genes
            if done is None or gene not in of_kind or gene not in done.names
        ]

    def new_values(self, gene: str, cells: Cells, rows: np.ndarray, logarithmic: bool) -> Tensor:
        """The multiplicities of a perturbed gene in the cells `rows`, float32 [C].

        logarithmic: multiplicities are log(1 + count), of which a knock-down divides the count.
        """
        every = cells.multiplicity[:, [cells.vocabulary.index(gene)]].toarray()[:, 0]
        before = torch.as_tensor(every[rows])
        if gene in self.knock_out:
            return torch.zeros_like(before)
        if gene in self.knock_down:
            return (
                torch.log1p(self.remaining * torch.expm1(before))
                if logarithmic
                else self.remaining * before
            )
        present = every[every > 0]
        if not len(present):
            raise DataError(
                f"No cell of this run has {gene!r}, so it is not known how high it can be; leave "
                "it out."
            )
        return before.clamp(min=float(np.quantile(present, self.quantile)))


@dataclass(frozen=True)
class Subject:
    """A run with the cells that it was trained on. adata: these in memory, where it was trained on
    an AnnData. folder: with the tables of its edges; None where there are none.
    """

    config: Config
    trained: TrainedModel
    cells: Cells
    states: States
    adata: AnnData | None
    folder: Path | None = None

    @classmethod
    def of_run(
        cls, run: Path, config: Config, trained: TrainedModel, adata: AnnData | None = None
    ) -> Subject:
        """Raises ConfigError, DataError; also where the cells are not those of the run any more."""
        if not trained.model.genes_train:
            raise ConfigError(
                f"The model of {run} predicts no genes ({{field}}: 0), so it expects nothing of a "
                f"perturbation",
                field="objectives.masked_multiplicity.weight",
            )
        cells = cells_of_run(run, config, trained, adata)
        trained.model.to(own_device(config.trainer)).eval()
        return cls(
            config,
            trained,
            cells,
            states_of_run(run, cells, config.trainer.seed, trained),
            adata,
            run,
        )

    @property
    def model(self) -> Model:
        return self.trained.model

    @property
    def sd(self) -> np.ndarray:
        """Of each gene's multiplicity, the unit of effects, float32 [N]."""
        return self.model.sd.cpu().numpy()

    def inputs(self, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Multiplicities of the regulators [C, R], basal multiplicities [C] and memberships [C, S]
        of some cells.
        """
        measured = self.cells.multiplicity[rows][:, self.trained.regulators].toarray()
        parts = measured, self.cells.basal[rows], self.states.membership[rows]
        measured, basal, states = (
            torch.as_tensor(each, device=self.model.mean.device) for each in parts
        )
        return measured, basal, states

    @cached_property
    def caused(self) -> Caused:
        """What interventions caused in the cells, which had some."""
        return caused_effects(self.cells, self.states)

    @cached_property
    def unmade(self) -> Unmade:
        """What interventions would do that nobody made, learned from those of the cells."""
        done = self.cells.interventions
        assert done is not None, "the caller has asked"
        return Unmade(at_one_total(self.cells), self.states.membership, done, self.caused)

    @property
    def logarithmic(self) -> bool:
        return self.trained.values == "counts" and self.trained.multiplicity != "counts"

    def rows(
        self, cell_type: str | None = None, where: Mapping[str, str] | None = None
    ) -> np.ndarray:
        """The cells of a type (or state that was found) for which columns of obs have these values,
        int64 [C]; of a screen, its controls among them.

        Raises DataError where there are none.
        """
        cells, done = self.cells, self.cells.interventions
        chosen = np.ones(len(cells), dtype=bool) if done is None else done.control.copy()
        if cell_type is not None:
            states = self.states.names if len(self.states) > 1 else ()
            named = states if cell_type in states else cells.classes or states
            check_known(cell_type, named, "The run", "cell type", "cell_type")
            chosen &= (
                cells.labels == cells.classes.index(cell_type)
                if cell_type in cells.classes
                else self.states.membership.argmax(1) == states.index(cell_type)
            )
        if where:
            columns = read_columns(
                self.config.data, self.cells, dict.fromkeys(where, "where"), self.adata
            )
            for column, value in where.items():
                values = columns[column].astype(object).map(str).to_numpy()
                known = ", ".join(map(repr, sorted(set(values[chosen]))[:12]))
                chosen &= values == value
                if not chosen.any():
                    problem = (
                        f"None of the chosen cells has {value!r} in column {column!r} of obs; they "
                        f"have {known}."
                    )
                    raise DataError(problem, field="where")
        return np.flatnonzero(chosen)


@dataclass(frozen=True)
class Perturbed:
    """What a perturbation changes.

    table: see `gene_table`.
    change [C, n]: of each cell's expected multiplicities, float32.
    rows [C]: the cells.
    genes [n]: the columns of `change`, all of the vocabulary but the keys of guides.
    sizes: a sentence, which changes are not shrunk; empty with interventions.
    """

    table: pd.DataFrame
    change: np.ndarray
    rows: np.ndarray
    genes: np.ndarray
    sizes: str = ""


def perturb_cells(subject: Subject, plan: Plan, rows: np.ndarray, steps: int = 1) -> Perturbed:
    """The changes in the cells `rows` after a perturbation. steps: of propagation, at least 1.

    Raises DataError.

    Direct changes along certain edges are not shrunk (certain_slopes.py). With interventions, genes
    that were intervened on have what the model has of their guides, and others what was learned
    from these (unmade.py).
    """
    model = subject.model
    cells = subject.cells
    regulators = subject.trained.regulators
    sd = subject.sd
    fixed = plan.fixed(cells, regulators, rows, subject.logarithmic)
    slopes, sizes, never = None, "", []
    if cells.interventions is None:
        slopes, sizes = certain_slopes(
            subject.folder, subject.trained, cells, subject.states, rows, fixed
        )
    else:
        never = plan.never_intervened(cells)
    unmade = {gene: fixed.pop(_column(subject, gene)).numpy() for gene in never}
    change = np.zeros((len(rows), len(sd)), np.float32)
    by_model = len(never) < len(plan.genes)
    total = np.zeros((model.config.members if by_model else 1, len(sd)))
    for part in slices(model, len(rows)) if by_model else ():
        measured, basal, states = inputs = subject.inputs(rows[part])
        of_part = {column: values[part] for column, values in fixed.items()}
        added = None if slopes is None else slopes.added(model, inputs, of_part, part)
        effect = effects(model, measured, basal, states, of_part, steps, added).cpu()
        for column, values in of_part.items():
            own = regulators[column]
            effect[..., own] = (values - measured[:, column].cpu()) / float(sd[own])
        total += effect.sum(1).double().numpy()
        change[part] = effect.mean(0).numpy() * sd
    mean, error = total / len(rows), None
    if slopes is not None:
        error = slopes.error_of_mean() / sd
        # What is not shrunk may take more of a gene than there is; the table's means end there,
        # too.
        there, fall = np.asarray(cells.multiplicity[rows].mean(0)).ravel(), -mean.mean(0) * sd
        change *= np.divide(there, fall, out=np.ones(len(sd)), where=fall > there).astype(
            np.float32
        )
    learned = {gene: _unmade(subject, gene, rows, new) for gene, new in unmade.items()}
    for of_all, _ in learned.values():
        change += of_all.astype(np.float32)
        mean += of_all / sd
    for gene, (_, moved) in learned.items():
        own = cells.vocabulary.index(gene)
        change[:, own], mean[:, own] = moved, moved.mean() / sd[own]
    return _perturbed(subject, plan, rows, mean, change, error, sizes)


def _column(subject: Subject, gene: str) -> int:
    """Of the gene's messenger among the regulators."""
    return int(np.searchsorted(subject.trained.regulators, subject.cells.vocabulary.index(gene)))


def _unmade(
    subject: Subject, gene: str, rows: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean changes [N] of the cells `rows` after an intervention that nobody made, and the gene's
    own in each [C].

    values [C]: the gene's new multiplicities. What was learned is of the kind of intervention that
    was made, in controls; in other cells, or of another kind, genes move by as much more or less as
    the gene itself does, at most FURTHEST times as far.
    """
    cells, done = subject.cells, subject.cells.interventions
    assert done is not None, "the caller has asked"
    own, control = cells.vocabulary.index(gene), np.flatnonzero(done.control)
    kind: dict[str, Any] = {each: (gene,) for each, word in KINDS.items() if word == done.kind}
    after = Plan(**kind).new_values(gene, cells, control, subject.logarithmic).numpy()
    usual = float((after - cells.multiplicity[control][:, [own]].toarray()[:, 0]).mean())
    moved = values - cells.multiplicity[rows][:, [own]].toarray()[:, 0]
    share = float(np.clip(moved.mean() / usual, -FURTHEST, FURTHEST)) if usual else 0.0
    change = share * subject.unmade.effect(own) * subject.caused.sd
    change[own] = moved.mean()
    return change, moved


def _perturbed(
    subject: Subject,
    plan: Plan,
    rows: np.ndarray,
    mean: np.ndarray,
    change: np.ndarray,
    error: np.ndarray | None = None,
    sizes: str = "",
) -> Perturbed:
    """Return the result without the keys of guides.

    mean [P, N]: effects in sds.
    change [C, N]: of multiplicities.
    error [N]: of certain edges, in sds.
    """
    cells, sd, done = subject.cells, subject.sd, subject.cells.interventions
    genes = np.arange(len(sd)) if done is None else np.setdiff1d(np.arange(len(sd)), done.key)
    names = tuple(cells.vocabulary[gene] for gene in genes)
    if done is not None:
        error = _error(subject, plan) / sd
    own = None if error is None else error[genes]
    before = cells.multiplicity[rows][:, genes]
    table = gene_table(
        names, mean[:, genes], sd[genes], before, plan, own, measured=done is not None
    )
    return Perturbed(table, change[:, genes], rows, genes, sizes)


def _error(subject: Subject, plan: Plan) -> np.ndarray:
    """How far genes may be from the predicted changes of their multiplicities, [N]: by the noise of
    the measured effects, and for a gene that was never intervened on by what such predictions
    missed.
    """
    done, never = subject.cells.interventions, plan.never_intervened(subject.cells)
    assert done is not None, "the caller has asked"
    own = [done.names.index(gene) for gene in plan.genes if gene not in never]
    square = np.square(np.nan_to_num(subject.caused.reach[:, own]) / NORMAL).sum(1)
    if never:
        square += len(never) * np.square(subject.unmade.sd)
    return np.sqrt(square) * subject.caused.sd


def gene_table(
    vocabulary: tuple[str, ...],
    effect: np.ndarray,
    sd: np.ndarray,
    before: sparse.csr_matrix,
    plan: Plan,
    error: np.ndarray | None = None,
    *,
    measured: bool = False,
) -> pd.DataFrame:
    """A row for each gene: those that are perturbed first, then by falling |effect|, or by falling
    size.

    effect [P, N]: of each member, in sds.
    before [C, N]: multiplicities.
    error [N]: of the effects, besides what members differ by; None: not known, NaN: not of this
        gene.
    measured: whether interventions say how large effects and errors are, which then have a size.
        Columns: see grn.perturb; sd is NaN of one member alone.
    """
    mean = effect.mean(0)
    spread = effect.std(0, ddof=1) if len(effect) > 1 else np.full(len(mean), np.nan)
    perturbed = np.isin(vocabulary, plan.genes)
    by, level = np.abs(mean), np.asarray(before.mean(0)).ravel()
    ends: dict[str, np.ndarray] = {}
    if error is not None:
        width = np.where(perturbed, 0.0, np.hypot(np.nan_to_num(spread), error))
        low, high = mean - NORMAL * width, mean + NORMAL * width
        # without what members differ by, which is largest for genes that are hardly expected to
        # respond
        if measured:
            by = expected_size(mean, np.where(perturbed, 0.0, error))
            ends = {"low": low, "high": high, "size": by}
        else:
            spread = np.where(np.isfinite(width), width, spread)
            # no more than there is
            mean, low, high = (np.maximum(each, -level / sd) for each in (mean, low, high))
            by, ends = np.abs(mean), {"low": low, "high": high}
    table = pd.DataFrame(
        {
            "gene": pd.Series(vocabulary, dtype=object),
            "change": mean * sd,
            "effect": mean,
            "sd": np.where(perturbed, 0.0, spread),
            "before": level,
            "perturbed": perturbed,
            **ends,
        }
    )
    return table.iloc[np.lexsort([-by, ~perturbed])].reset_index(drop=True)


def expected_size(mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """The mean of |X| for normal X: what an effect that is known to `sd` is expected to be,
    whatever its sign.
    """
    ratio = np.divide(mean, sd, out=np.full(mean.shape, 40.0), where=sd > 0)
    return sd * math.sqrt(2 / math.pi) * np.exp(-np.square(ratio) / 2) + np.abs(mean) * (
        2 * ndtr(np.abs(ratio)) - 1
    )


def perturbed_anndata(
    subject: Subject, plan: Plan, found: Perturbed, steps: int, basis: str | None = None
) -> AnnData:
    """The chosen cells with what a perturbation changes; see grn.perturb for the names. Raises
    DataError.
    """
    cells, trained, rows = subject.cells, subject.trained, found.rows
    source = open_source(subject.config.data) if subject.adata is None else subject.adata
    if basis is not None:
        check_known(basis, source.obsm, "The AnnData", "embedding in obsm called", "basis")
        embedding = np.asarray(source.obsm[basis], np.float64)[: len(cells)]
    changed = cells.multiplicity[rows].toarray()
    changed[:, found.genes] = np.maximum(changed[:, found.genes] + found.change, 0)
    after = sparse.csr_matrix(changed)
    here, there = (
        predict_cells(trained, each, cells.basal[rows])
        for each in (cells.multiplicity[rows], after)
    )
    shift = there.representation - here.representation
    names = [cells.vocabulary[gene] for gene in found.genes]
    table = found.table.set_index("gene").reindex(names)
    adata = AnnData(
        cells.multiplicity[rows][:, found.genes],
        obs=source.obs.iloc[rows].copy(),
        var=table.rename(columns=lambda name: f"grn_{name}"),
        layers={"grn_change": found.change},
        obsm={"X_grn": here.representation, "X_grn_shift": shift},
    )
    adata.var_names = names
    adata.uns["grn_perturb"] = {
        "perturbation": plan.described(),
        **{kind: np.array(getattr(plan, kind), dtype=object) for kind in KINDS},
        "steps": steps,
        "model_hash": trained.hash,
        "change": "expected change of the multiplicity; effect: in sds of the gene over the "
        "training cells",
    }
    if found.sizes:
        adata.uns["grn_perturb"]["sizes"] = found.sizes
    if cells.interventions is not None:
        adata.uns["grn_perturb"]["never_intervened"] = np.array(
            plan.never_intervened(cells), dtype=object
        )
    if here.probabilities is not None and there.probabilities is not None:
        for name, each in (("before", here.probabilities), ("after", there.probabilities)):
            adata.obs[f"grn_cell_type_{name}"] = pd.Categorical.from_codes(
                each.argmax(1), categories=trained.classes
            )
        adata.obsm["grn_probabilities_change"] = there.probabilities - here.probabilities
        adata.uns["grn_perturb"]["classes"] = np.array(trained.classes, dtype=object)
    if basis is not None:
        everyone = predict_cells(trained, cells.multiplicity, cells.basal).representation
        adata.obsm[basis] = embedding[rows]
        adata.obsm[f"{basis}_shift"] = shift_in_embedding(
            shift, here.representation, everyone, embedding, rows
        )
    return adata


def shift_in_embedding(
    shift: np.ndarray,
    here: np.ndarray,
    everyone: np.ndarray,
    embedding: np.ndarray,
    rows: np.ndarray,
) -> np.ndarray:
    """Where cells move in an embedding that is not the model's own: [C, B], towards the neighbours
    that lie there.

    shift, here [C, D]: in the model's representation, as everyone [all cells, D]. embedding [all
        cells, B].
    rows [C]: of `here` among all cells. Neighbours are weighed by exp(cosine(shift, neighbour -
        cell) / SHARPNESS), less the mean weight. A cell that does not move stays. Source: La Manno
        et al. 2018, eq. for the projection of velocities.
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
    subject: Subject,
    cell_type: str,
    towards: str,
    *,
    kind: str = "knock_out",
    steps: int = 1,
    say: Say = silent,
) -> pd.DataFrame:
    """A row for each regulator, by falling share of the way from `cell_type` to `towards`.

    kind: of KINDS. Columns: see grn.screen.
    Raises DataError.
    """
    here, there = subject.rows(cell_type), subject.rows(towards)
    model, cells = subject.model, subject.cells
    sd, vocabulary = subject.sd.astype(np.float64), np.array(cells.vocabulary, dtype=object)
    means = [np.asarray(cells.multiplicity[rows].mean(0)).ravel() for rows in (here, there)]
    way = (means[1] - means[0]) / sd
    if not way.any():
        raise DataError(
            f"Cell types {cell_type!r} and {towards!r} have the same levels; name two that differ."
        )
    rows = (
        here
        if len(here) <= SCREENED
        else here[np.linspace(0, len(here) - 1, SCREENED).round().astype(int)]
    )
    measured, basal, states = subject.inputs(rows)
    regulators = subject.trained.regulators
    found = []
    done, left_out = cells.interventions, np.zeros(0, np.int64)
    # keys of guides whose gene has another key, or of which another kind alone is known
    if done is not None:
        left_out = done.key[(done.place >= 0) | (KINDS[kind] != done.kind)]
    for column, position in enumerate(regulators):
        gene = str(vocabulary[position])
        if position in left_out:
            continue
        before = float(measured[:, column].mean())
        if kind == "overexpress" and not cells.multiplicity[:, [position]].nnz:
            continue
        knock_out, knock_down, overexpress = ((gene,) if kind == each else () for each in KINDS)
        plan = Plan(knock_out, knock_down, overexpress)
        values = plan.fixed(cells, regulators, rows, subject.logarithmic)
        effect = np.zeros((model.config.members, len(vocabulary)))
        if done is not None and plan.never_intervened(cells):
            effect += _unmade(subject, gene, rows, values[column].numpy())[0] / sd
        else:
            for part in slices(model, len(rows)):
                some = measured[part], basal[part], states[part]
                fixed = {at: each[part] for at, each in values.items()}
                effect += effects(model, *some, fixed, steps).sum(1).double().cpu().numpy()
            effect /= len(rows)
        effect[:, position] = 0
        others = np.arange(len(way)) != position
        share = effect @ way / np.square(way[others]).sum()
        mean = effect.mean(0)
        most = int(np.abs(mean).argmax())
        spread = share.std(ddof=1) if len(share) > 1 else np.nan
        size = float(np.sqrt(np.square(mean[others]).mean()))
        found.append(
            (
                gene,
                share.mean(),
                spread,
                size,
                before,
                vocabulary[most] if mean[most] else "",
                mean[most],
            )
        )
        if (column + 1) * MESSAGES // len(regulators) > column * MESSAGES // len(regulators):
            say(f"Screening the regulators: {100 * (column + 1) // len(regulators)} % are done.")
    names = ["gene", "towards", "sd", "size", "before", "strongest", "strongest_effect"]
    table = pd.DataFrame(found, columns=names)
    return table.sort_values("towards", ascending=False, kind="stable").reset_index(drop=True)
