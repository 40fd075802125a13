"""Shrunk partial correlation of regulator and target given all other genes, signed.

The covariance of the standardised genes is shrunk towards a multiple of the identity with Ledoit and Wolf's intensity,
then inverted: p_ij = -K_ij / sqrt(K_ii K_jj), K the inverse. "All other genes" are all N, not the regulators alone.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.covariance import LedoitWolf

from peers.peer import Peer, edge_table, positions, standardised


def infer(values: np.ndarray, genes: list[str], regulators: list[str], seed: int, *, n_jobs: int = 1) -> pd.DataFrame:
    """values [C, N] -> one row per pair regulator -> gene; nothing is random and nothing parallel here."""
    precision = LedoitWolf(assume_centered=True).fit(standardised(values)).precision_
    scale = np.sqrt(np.diag(precision))
    partial = -precision / scale[:, None] / scale[None, :]
    return edge_table(partial[positions(genes, regulators)], genes, regulators)


PEER = Peer("partial_correlation", infer, source="Ledoit and Wolf 2004; Schaefer and Strimmer 2005", sign="own")
