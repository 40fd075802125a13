"""Spearman's rank correlation, signed; ties get their mean rank."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from peers.peer import Peer, correlation, edge_table, positions


def infer(values: np.ndarray, genes: list[str], regulators: list[str], seed: int, *, n_jobs: int = 1) -> pd.DataFrame:
    """values [C, N] -> one row per pair regulator -> gene; nothing is random and nothing parallel here."""
    return edge_table(correlation(rankdata(values, axis=0), positions(genes, regulators)), genes, regulators)


PEER = Peer("spearman", infer, source="textbook", sign="own")
