"""Which tokens of a batch of bags are queries, which are keys, and where each bag starts among them.

Letters: V genes of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from flashsign.tensor_cache import cached
from grn.bags import Bags


@dataclass(frozen=True)
class Layout:
    """The tokens of a batch of bags: the genes of each bag, then its basal gene. Every token is a query.

    embedding_rows: row of each token in the embedding, which is its vocabulary position (V: the basal gene).
    genes: positions of the gene tokens among all tokens.   keys: positions of the tokens that gene queries read, which
    are the regulators and the basal gene (None: all tokens).   multiplicity: of each token.
    offsets, key_offsets, summary_offsets: where each bag starts among the tokens, the keys and the summaries; None for
    dense bags.   group: processes that share the genes of each bag; None: this process has all genes.
    """

    embedding_rows: Tensor
    genes: Tensor
    keys: Tensor | None
    multiplicity: Tensor
    offsets: Tensor | None
    key_offsets: Tensor | None
    summary_offsets: Tensor | None
    group: ProcessGroup | None

    @staticmethod
    def of(bags: Bags, is_regulator: Tensor, group: ProcessGroup | None = None) -> Layout:
        """The layout of these bags; is_regulator: bool [V]."""
        basal_row = len(is_regulator)
        basal = bags.multiplicity.new_ones(bags.cells) if bags.basal is None else bags.basal
        basal = basal.to(bags.multiplicity.dtype)
        if group is not None and group.rank() > 0:
            # One basal gene a bag: it is a query in every process of the group, and a key in the first one alone.
            basal = torch.zeros_like(basal)
        is_key = F.pad(is_regulator, (0, 1), value=True)
        # Cached, as reading it in every step would synchronise with the GPU.
        all_are_keys = cached(is_regulator, "all", lambda: bool(is_regulator.all()))
        if bags.offsets is None:
            rows = F.pad(bags.genes, (0, 1), value=basal_row)
            genes = torch.arange(len(bags.genes), device=rows.device)
            multiplicity = torch.cat([bags.multiplicity, basal[:, None]], 1)
            keys = None if all_are_keys else is_key[rows].nonzero()[:, 0]
            return Layout(rows, genes, keys, multiplicity, None, None, None, group)

        bag = torch.arange(bags.cells + 1, device=bags.genes.device)
        offsets = bags.offsets + bag  # each bag is one token longer, by its basal gene
        genes = torch.arange(len(bags.genes), device=bags.genes.device)
        genes = genes + torch.repeat_interleave(bag[:-1], bags.offsets.diff(), output_size=len(genes))
        rows = torch.full((len(genes) + bags.cells,), basal_row, device=genes.device)
        rows[genes] = bags.genes
        multiplicity = bags.multiplicity.new_empty(len(rows)).index_copy(0, genes, bags.multiplicity)
        multiplicity = multiplicity.index_copy(0, offsets[1:] - 1, basal)
        if all_are_keys:
            return Layout(rows, genes, None, multiplicity, offsets, offsets, bag, group)
        token_is_key = is_key[rows]
        key_offsets = F.pad(token_is_key.cumsum(0), (1, 0))[offsets]
        return Layout(rows, genes, token_is_key.nonzero()[:, 0], multiplicity, offsets, key_offsets, bag, group)
