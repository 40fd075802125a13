"""What perturbed regulators do directly along certain edges, not shrunk by a penalty.

A run's tables hold effect_ij of each edge, the log2 fold change of gene i for a doubling of
regulator j, with its standard error (evidence/effects.py). In the unit of multiplicities
they are slopes again, exactly those that the fold changes were made of:

    slope_ij = effect_ij s_i / s_j
    change_i = sum_j slope_ij (new multiplicity of j - its multiplicity)

s_i is mu h'(mu) of the cells that the effect was read from (`scale_of`).

An edge that is certain in the state of a cell has its effect in that state. So has an edge that is
certain over all cells, where both effects differ by more than their errors allow. Any other edge
that is certain over all cells has the effect over all cells: that a state of few cells does not
show it does not say that it is not there.

Letters: P members, C chosen cells, N genes, J perturbed regulators, U states of the chosen cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from grn.cells.cells import Cells
from grn.evidence.caused import NORMAL
from grn.evidence.effects import rows_of_states, scale_of
from grn.evidence.states import States
from grn.features.findings.summary import certain
from grn.features.perturb.mechanism import effects
from grn.model.regulation import Model
from grn.model.saved import TrainedModel
from grn.runtime.run_folder import HASHES
from grn.runtime.tables import read_edge_table

EDGES, OF_STATES = "edges.parquet", "edges_by_type.parquet"
SHRUNK = "so all changes are the model's own, which its penalty shrinks."


@dataclass(frozen=True)
class CertainSlopes:
    """Slopes of the certain edges of perturbed regulators, in each state of the chosen cells.

    slope, error [U, J, N]: multiplicity of the gene for one of the regulator, and its standard
        error; NaN without a certain edge.
    shared [U, J, N]: whether both are those over all cells.
    state [C]: of each cell, among U.
    columns [J]: of the perturbed regulators among the model's.
    moved [C, J]: changes of their multiplicities.
    """

    slope: np.ndarray
    error: np.ndarray
    shared: np.ndarray
    state: np.ndarray
    columns: tuple[int, ...]
    moved: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """Where there is a certain edge, [U, J, N]."""
        return np.isfinite(self.slope)

    def added(
        self,
        model: Model,
        inputs: tuple[Tensor, Tensor, Tensor],
        fixed: Mapping[int, Tensor],
        part: slice,
    ) -> Tensor:
        """By how much certain edges change genes more than the model has them do so, in sds of the
        genes, [P, C, N].

        inputs, fixed: of the cells `part`, see `perturb_mechanism.effects`.
        """
        measured = inputs[0]
        state, moved = torch.as_tensor(self.state[part]), torch.as_tensor(self.moved[part])
        found = measured.new_zeros(model.config.members, len(measured), model.genes)
        for number, column in enumerate(self.columns):
            slope = torch.as_tensor(self.slope[:, number])
            if not (known := slope.isfinite()).any():
                continue
            own = (slope.nan_to_num()[state] * moved[:, number, None]).to(measured) / model.sd
            of_model = effects(model, *inputs, {column: fixed[column]}, 1)
            found += (own - of_model).masked_fill(~known[state].to(measured.device), 0.0)
        return found

    def error_of_mean(self) -> np.ndarray:
        """Standard error of the mean direct change of each gene over the cells, in multiplicities,
        [N].

        NaN where no regulator has a certain edge to the gene in every state of the cells in which
        it changes. Errors of different edges are taken as independent, those of one edge over all
        cells are one and the same.
        """
        states = len(self.slope)
        moved = np.stack([self.moved[self.state == one].sum(0) for one in range(states)]) / len(
            self.state
        )
        square = np.square(np.nan_to_num(self.error) * moved[:, :, None])
        together = np.where(self.shared, np.nan_to_num(self.error) * moved[:, :, None], 0).sum(0)
        total = np.where(self.shared, 0, square).sum((0, 1)) + np.square(together).sum(0)
        whole = (self.known | (moved == 0)[:, :, None]).all(0) & self.known.any(0)
        return np.where(whole.any(0), np.sqrt(total), np.nan)


def certain_slopes(
    run: Path | None,
    trained: TrainedModel,
    cells: Cells,
    states: States,
    rows: np.ndarray,
    fixed: Mapping[int, Tensor],
) -> tuple[CertainSlopes | None, str]:
    """Of the regulators `fixed` (column of each among the model's -> new multiplicities [C]) in the
    cells `rows` [C], by the tables in the folder `run`; and a sentence about them.

    None where the run holds no effects, or not those of this model.
    Raises DataError where a table is damaged.
    """
    places = [int(trained.regulators[column]) for column in fixed]
    names = [cells.vocabulary[place] for place in places]
    chosen = [("source", "in", names)]
    overall = pd.DataFrame() if run is None else read_edge_table(run / EDGES, filters=chosen)
    if run is None or not {"effect", "effect_se", "q_value"} <= set(overall):
        return None, f"This run holds no effects or no q-values of its edges, {SHRUNK}"
    if HASHES[EDGES](run / EDGES) != trained.hash:
        return None, f"The edges of this run are not of this model, {SHRUNK}"
    read = rows_of_states(trained.model, states)
    numbers, state = np.unique(states.membership[rows].argmax(1), return_inverse=True)

    def slopes(edges: pd.DataFrame, cells_read: np.ndarray) -> np.ndarray:
        """Slopes, their errors and whether the edges are certain, [3, J, N]; NaN for pairs that are
        not listed.
        """
        found = np.full((3, len(names), len(cells.vocabulary)), np.nan)
        if edges.empty:
            return found
        scale = scale_of(cells, cells_read)
        source = pd.Index(names).get_indexer(edges["source"].astype(str))
        target = pd.Index(cells.vocabulary).get_indexer(edges["target"].astype(str))
        factor = (
            np.ones(len(edges))
            if scale is None
            else scale[target] / scale[np.array(places)[source]]
        )
        sure = edges.index.isin(certain(edges).index)
        values = np.stack([edges["effect"] * factor, edges["effect_se"] * factor, sure])
        listed = np.isfinite(values).all(0)
        found[:, source[listed], target[listed]] = values[:, listed]
        return found

    every = slopes(certain(overall), np.arange(len(cells)))
    slope, error, shared = (
        np.stack([each] * len(numbers)) for each in (*every[:2], np.isfinite(every[0]))
    )
    if (run / OF_STATES).is_file():
        by_state = read_edge_table(run / OF_STATES, filters=chosen)
        label = by_state["cell_type"].astype(str)
        for at, number in enumerate(numbers):
            own = slopes(
                by_state[label == states.names[number]].reset_index(drop=True), read[number]
            )
            used = (own[2] == 1) | (np.abs(own[0] - every[0]) > NORMAL * np.hypot(own[1], every[1]))
            for table, values in ((slope, own[0]), (error, own[1]), (shared, np.zeros_like(used))):
                table[at] = np.where(used, values, table[at])
    moved = (
        torch.stack(list(fixed.values()), 1).numpy() - cells.multiplicity[rows][:, places].toarray()
    )
    found = CertainSlopes(slope, error, shared, state, tuple(fixed), moved)
    return found, in_words(found, names)


def in_words(found: CertainSlopes, names: Sequence[str]) -> str:
    """How many genes have changes that are not shrunk, in a sentence."""
    number, whose = int(found.known.any((0, 1)).sum()), " or ".join(names)
    if not number:
        return f"No edge of {whose} is certain in these cells, {SHRUNK}"
    return (
        f"{number} {'gene has' if number == 1 else 'genes have'} a certain edge from {whose}: the "
        "direct change is by its effect, which is not shrunk, with a 95 % interval (low, high) "
        "and its standard error as sd. This is the size of an association, not of a cause. The "
        "other changes are the model's own, which its penalty shrinks."
    )
