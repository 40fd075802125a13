"""Derivatives of signed blocks of many genes, some genes after the other.

Letters: P members, n genes, R regulators.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grn.model.regulation import Model
from grn.model.signed_block import SignedBlock

NUMBERS, NUMBERS_ON_GPU = 2**24, 2**28  # predictions of heads that are in memory at once


def in_parts(model: Model, block: SignedBlock, m: Tensor, state: int, share: Tensor) -> Tensor:
    """`derivatives` of all genes of a block by the regulators, some genes after the other: [P, n,
    R]."""
    most = max(1, (NUMBERS_ON_GPU if m.is_cuda else NUMBERS) // (model.config.members * len(m)))
    genes = torch.arange(block.genes, device=m.device)
    parts = [
        block.derivatives(m, state, pick, block.scores(pick), share)[..., :-1]
        for pick in genes.split(min(most, model.genes_at_once))
    ]
    return torch.cat(parts, 1)
