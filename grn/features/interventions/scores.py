"""How well interventions are predicted: in cells of a run that it has not seen, or where one was
left out altogether.

A gene responds where |z| > RESPONDS against control cells of the same stratum. Beside the model
stand what simple methods say: the mean of all other interventions, Pearson correlation, ridge
regression, and a linear model with gene embeddings, change = G W p + mean, which deep models have
not beaten (Ahlmann-Eltze et al. 2025).

Letters: C cells, N genes, n of them that were measured, T interventions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.stats import spearmanr

from grn.cells.cells import Cells
from grn.cells.load import load_cells
from grn.cells.obs import column_of
from grn.cells.readers.registry import MEMORY
from grn.config.files import change_config
from grn.config.schema import Config
from grn.evidence.caused import Caused, caused_effects
from grn.evidence.states import States, states_of
from grn.features.perturb.perturbed import KINDS, Plan, Subject, perturb_cells
from grn.model.saved import TrainedModel
from grn.runtime.errors import DataError, check_known
from grn.runtime.messages import Say, silent

RESPONDS = 4.0  # |z| from which a gene responds
STEPS = 20  # of propagation: until nothing moves any more
CONTROLS = 400  # in which the model predicts: a mean effect settles soon
COMPONENTS, PENALTY = 10, 0.1  # of the linear model with gene embeddings, and of ridge regression
Fit = Callable[[Config, Cells, States, Say], TrainedModel]
SCORES = ("auroc", "early_precision", "signs", "rank_correlation", "error")


def scores(
    size: np.ndarray, change: np.ndarray, z: np.ndarray, effect: np.ndarray
) -> dict[str, float]:
    """Of a predicted change [N] and the sizes [N] that rank genes, against the measured z [N] and
    effect [N] in sds.

    NaN of the measured genes are left out. error: squared, in units of the measured effects' mean
    square, so that 1 is what predicting no change has. Scores of genes that respond are NaN where
    none or all do.
    """
    from sklearn.metrics import roc_auc_score

    known = np.isfinite(z) & np.isfinite(change)
    size, change, z, effect = (each[known] for each in (size, change, z, effect))
    responds = np.abs(z) > RESPONDS
    count = int(responds.sum())
    found = {"genes": float(count), **dict.fromkeys(SCORES, np.nan)}
    if 0 < count < len(z):
        found["auroc"] = float(roc_auc_score(responds, size))
        found["early_precision"] = float(responds[np.argsort(-size, kind="stable")[:count]].mean())
        found["signs"] = float((np.sign(change) == np.sign(z))[responds].mean())
    if np.ptp(change) > 0:
        found["rank_correlation"] = float(spearmanr(change, z)[0])
    found["error"] = float(
        np.square(change - effect).mean() / max(float(np.square(effect).mean()), 1e-30)
    )
    return found


def measured(caused: Caused, number: int, sign: float) -> tuple[np.ndarray, np.ndarray]:
    """z and effect [N] of intervention `number` as a change, from effects with the sign of more of
    the regulator.
    """
    effect = sign * caused.effect[:, number]
    return effect / np.maximum(caused.error[:, number], 1e-12), effect


def simple_changes(cells: Cells, gene: str, training: Caused) -> Iterator[tuple[str, np.ndarray]]:
    """What simple methods expect of an intervention on `gene`, [N] in sds, from cells and
    interventions without it.

    Methods that need the gene's messenger say nothing where it was not measured.
    """
    done = cells.interventions
    assert done is not None, "the caller has asked"
    genes = np.setdiff1d(np.arange(len(cells.vocabulary)), done.key)
    values = cells.multiplicity[:, genes].toarray().astype(np.float64)
    sd = values.std(0)
    z = (values - values.mean(0)) / np.where(sd > 1e-9, sd, 1)
    correlation = z.T @ z / len(z)
    changes = done.sign * np.nan_to_num(training.effect[genes]).T  # [T, n]
    whole = np.full(len(cells.vocabulary), np.nan)

    def every(change: np.ndarray) -> np.ndarray:
        found = whole.copy()
        found[genes] = change
        return found

    yield "mean of all", every(changes.mean(0))
    places = {cells.vocabulary[position]: row for row, position in enumerate(genes)}
    if gene not in places:
        return
    own = places[gene]
    yield "pearson", every(done.sign * correlation[:, own])
    inverse = np.linalg.inv(correlation + PENALTY * np.eye(len(correlation)))
    yield "ridge", every(-done.sign * inverse[:, own] / inverse[own, own])
    known = [number for number, name in enumerate(done.names) if name in places]
    if known:
        size, vectors = np.linalg.eigh(correlation)
        embedding = vectors[:, -COMPONENTS:] * np.sqrt(np.maximum(size[-COMPONENTS:], 0))
        perturbed = embedding[[places[done.names[number]] for number in known]]
        left, right = (
            each.T @ each + PENALTY * np.eye(embedding.shape[1]) for each in (embedding, perturbed)
        )
        mean = changes[known].mean(0)
        w = np.linalg.solve(
            left, embedding.T @ (changes[known] - mean).T @ perturbed
        ) @ np.linalg.inv(right)
        yield "linear, embeddings", every(embedding @ w @ embedding[own] + mean)


def predicted_change(subject: Subject, genes: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The model's sizes and expected changes of all genes, [N], in sds in control cells; NaN for
    keys of guides.
    """
    cells, done = subject.cells, subject.cells.interventions
    assert done is not None, "the caller has asked"
    made: dict[str, Any] = {kind: genes for kind, word in KINDS.items() if word == done.kind}
    controls = np.random.default_rng(0).permutation(np.flatnonzero(done.control))[:CONTROLS]
    table = perturb_cells(subject, Plan(**made), np.sort(controls), STEPS).table.set_index("gene")
    table = table.reindex(list(cells.vocabulary))
    # a perturbation's effects are in sds over all cells
    unit = subject.sd / subject.caused.sd
    return table["size"].to_numpy(float) * unit, table["effect"].to_numpy(float) * unit


def seen_interventions(subject: Subject, test: np.ndarray) -> pd.DataFrame:
    """A row for each intervention and method, in test cells: `intervention`, `method`, and SCORES.

    subject: trained on the other cells.
    test: rows. `mean change` is what was measured in the training cells.
    """
    cells, done = subject.cells, subject.cells.interventions
    assert done is not None, "the caller has asked"
    train = np.setdiff1d(np.arange(len(cells)), test)
    before, after = (caused_effects(cells, subject.states, rows) for rows in (train, test))
    rows = []
    for number, name in enumerate(done.names):
        z, effect = measured(after, number, done.sign)
        if not np.isfinite(z).any():
            continue
        own = measured(before, number, done.sign)
        found = {"grn": predicted_change(subject, (name,)), "mean change": (np.abs(own[0]), own[1])}
        others = done.sign * np.nan_to_num(np.delete(before.effect, number, 1)).mean(1)
        found["mean of all"] = np.abs(others), others
        rows += [
            {"intervention": name, "method": method} | scores(*each, z, effect)
            for method, each in found.items()
        ]
    return pd.DataFrame(rows)


def left_out(
    config: Config, adata: AnnData, names: list[str], fit: Fit, say: Say = silent
) -> pd.DataFrame:
    """The same for interventions that a new model never sees, each left out in turn; A+B: cells
    with both.

    config: of a run, whose cells are `adata`.
    fit: trains a model of all cells that it is given.
    Raises DataError for an intervention that no cell has.
    """
    config = change_config(config, {"data.path": MEMORY, "data.orientation": None})
    seed = config.trainer.seed
    cells, _ = load_cells(config.data, seed=seed, adata=adata)
    done, states = cells.interventions, states_of(cells, seed)
    assert done is not None, "the caller has asked"
    column = column_of(adata.obs, str(config.data.intervention_key), "data.intervention_key", "obs")
    rows = []
    for name in names:
        parts = tuple(name.split("+"))
        for part in parts:
            check_known(part, done.names, "The screen", "intervention", "leave_out")
        given = np.asarray(
            (done.given[:, [done.names.index(part) for part in parts]] > 0).sum(1)
        ).ravel()
        gone = given == len(parts) if len(parts) > 1 else given > 0
        if len(parts) > 1:
            gone &= np.diff(done.given.indptr) == len(parts)
        if not gone.any():
            raise DataError(
                f"No cell has {name!r}; {column.nunique()} interventions are known.",
                field="leave_out",
            )
        z, effect = _of_cells(cells, states, gone, done.sign)
        kept = adata[~gone].copy()
        others, _ = load_cells(config.data, seed=seed, adata=kept)
        own = states_of(others, seed)
        say(f"Without {name}: training on {len(others)} cells.")
        subject = Subject(config, fit(config, others, own, silent), others, own, kept)
        place = {gene: position for position, gene in enumerate(cells.vocabulary)}
        order = [place[gene] for gene in others.vocabulary]
        counted = {others.vocabulary[place] for place in subject.trained.regulators.tolist()}
        found = {}
        if set(parts) <= counted:
            found["grn"] = predicted_change(subject, parts)
        else:
            say(
                f"{name} is no regulator that was counted, so that without its guides the model "
                "knows nothing of it."
            )
        training = caused_effects(others, own)
        if len(parts) == 1:
            found |= {
                way: (np.abs(each), each) for way, each in simple_changes(others, name, training)
            }
        else:
            of_others = others.interventions
            assert of_others is not None
            own_columns = [of_others.names.index(part) for part in parts]
            both = of_others.sign * training.effect[:, own_columns].sum(1)
            found["sum of both"] = np.abs(both), both
        rows += [
            {"intervention": name, "method": way} | scores(*both, z[order], effect[order])
            for way, both in found.items()
        ]
    return pd.DataFrame(rows)


def _of_cells(
    cells: Cells, states: States, gone: np.ndarray, sign: float
) -> tuple[np.ndarray, np.ndarray]:
    """z and effect of some cells against controls, as one intervention."""
    done = cells.interventions
    assert done is not None
    one = sparse.csr_matrix(gone[:, None].astype(np.float32))
    alike = replace(
        done, names=("these",), given=one, place=np.array([-1]), key=np.zeros(0, np.int64)
    )
    found = caused_effects(replace(cells, interventions=alike), states)
    z, effect = measured(found, 0, sign)
    own = np.unique(done.given[gone].nonzero()[1])
    for table in (z, effect):
        table[done.key] = np.nan
        table[done.place[own][done.place[own] >= 0]] = np.nan
    return z, effect
