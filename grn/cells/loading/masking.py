"""Counter-based random numbers: each is a hash of what it is used for and does not depend on earlier draws.

So a cell has the same mask in every process, batch and worker, and after a resume.
"""

from __future__ import annotations

import math

import numpy as np

# splitmix64 (Steele, Lea and Flood 2014): the golden-ratio step and the two mixing multipliers.
STEP, FIRST, SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniform(seed: int, stream: int, epoch: int, cells: np.ndarray, genes: int) -> np.ndarray:
    """Numbers in [0, 1), float64 [C, N], each a function of (seed, stream, epoch, cell, gene) alone.

    cells [C]: rows in the data set.   stream: separates uses of one seed.
    """
    return (gene_bits(cell_states(seed, stream, epoch, cells), genes) >> np.uint64(11)) * 2.0**-53


def cell_states(seed: int, stream: int, epoch: int, cells: np.ndarray) -> np.ndarray:
    """State of each cell, uint64 [C]; `gene_bits` makes its random numbers from it."""
    state = np.zeros(1, np.uint64)
    for part in (seed, stream, epoch):
        state = _mix(state, np.array([part], np.uint64))
    return _mix(state, np.asarray(cells).astype(np.uint64))


def gene_bits(states: np.ndarray, genes: int) -> np.ndarray:
    """Random bits uint64 [..., N] from states [...]; they are below threshold(p) exactly where `uniform` is below p."""
    return _mix(states[..., None], np.arange(genes, dtype=np.uint64))


def threshold(p: float) -> np.uint64:
    """The probability p (0 <= p < 1) on the scale of `gene_bits`."""
    return np.uint64(math.ceil(p * 2**53) << 11)


def _mix(state: np.ndarray, part: np.ndarray) -> np.ndarray:
    """A new state from a state and a number, modulo 2^64; computed in place, as it runs over all genes of all cells."""
    bits = state + (part + np.uint64(1)) * STEP
    for shift, factor in ((30, FIRST), (27, SECOND)):
        bits ^= bits >> np.uint64(shift)
        bits *= factor
    bits ^= bits >> np.uint64(31)
    return bits
