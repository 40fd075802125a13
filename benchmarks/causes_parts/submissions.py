"""Predicted changes as predicted cells, the form in which the Virtual Cell Challenge takes them.

Every method's cells are made in the same way, that of the challenge's own baseline: control cells,
drawn with replacement, whose counts are multiplied gene by gene. Products are rounded up or down
at random, as a submission must be whole numbers.

Letters: C cells, N genes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from causes_parts.vcc2026 import Panel

STEPS, SMALLEST, LARGEST = 30, 1 / 8, 64.0  # of the search for a factor


def submission(measured: Panel, factors: Mapping[str, np.ndarray], seed: int) -> Panel:
    """Return predicted cells: of each intervention as many as were measured, and its controls.

    factors: intervention -> by what each gene's counts are multiplied [N].
    """
    generator = np.random.default_rng(seed)
    control = measured.of(measured.control)
    counts, label = [control], [measured.control] * len(control)
    for name in measured.names:
        size = int((measured.label == name).sum())
        drawn = control[generator.integers(0, len(control), size)] * factors[name]
        counts.append(np.floor(drawn + generator.random(drawn.shape)))
        label += [name] * size
    return Panel(np.concatenate(counts), np.array(label), measured.genes, measured.control)


def cells_of(measured: Panel, changes: Mapping[str, np.ndarray], seed: int) -> Panel:
    """Return predicted cells by changes of mean log multiplicities, intervention -> [N]."""
    control = measured.of(measured.control)
    total = float(measured.counts.sum(1).mean())
    factors = {name: factors_of(change, control, total) for name, change in changes.items()}
    return submission(measured, factors, seed)


def factors_of(change: np.ndarray, control: np.ndarray, total: float) -> np.ndarray:
    """Return by what counts of control cells are to be multiplied, so that their mean log
    multiplicity changes by `change` [N].

    control [C, N]: counts. total: to which a cell's counts are scaled before the logarithm.
    """
    values = control / np.maximum(control.sum(1, keepdims=True), 1) * total
    wanted = np.log1p(values).mean(0) + np.nan_to_num(change)
    low, high = np.full(len(change), np.log(SMALLEST)), np.full(len(change), np.log(LARGEST))
    for _ in range(STEPS):
        middle = (low + high) / 2
        below = np.log1p(values * np.exp(middle)).mean(0) < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(control.any(0), np.exp(low), 1.0)


def mean_of_panel(measured: Panel) -> np.ndarray:
    """Return the factors [N] of the challenge's baseline: from the controls' mean counts to the
    mean of all interventions' mean counts, where an intervention does not count for its own gene.
    """
    control = measured.of(measured.control).mean(0)
    means = np.stack([measured.of(name).mean(0) for name in measured.names])
    others = np.stack([measured.others(name) for name in measured.names])
    profile = (means * others).sum(0) / others.sum(0)
    return np.divide(profile, control, out=np.ones(len(control)), where=control > 0)
