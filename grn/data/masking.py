"""Random numbers by counter: a hash of where they are used, not of what was drawn before.

A cell has the same mask in every process, batch and worker, and after a resume.
"""

from __future__ import annotations

import numpy as np

# splitmix64 (Steele, Lea and Flood 2014): the golden-ratio step and the two mixing multipliers.
STEP, FIRST, SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniform(seed: int, stream: int, epoch: int, cells: np.ndarray, genes: int) -> np.ndarray:
    """Numbers in [0, 1), float64 [C, N], each a function of (seed, stream, epoch, cell, gene) alone.

    cells [C]: rows in the data set.   stream: keeps uses apart that share a seed.
    """
    state = np.zeros(1, np.uint64)
    for part in (seed, stream, epoch):
        state = _mix(state, np.array([part], np.uint64))
    rows = _mix(state, np.asarray(cells).astype(np.uint64))
    bits = _mix(rows[:, None], np.arange(genes, dtype=np.uint64))
    return (bits >> np.uint64(11)) * 2.0**-53


def _mix(state: np.ndarray, part: np.ndarray) -> np.ndarray:
    """A new state from a state and a number; arithmetic modulo 2^64."""
    bits = state + (part + np.uint64(1)) * STEP
    bits = (bits ^ (bits >> np.uint64(30))) * FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * SECOND
    return bits ^ (bits >> np.uint64(31))
