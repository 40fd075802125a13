"""The regulation layer as a layer of the transformer: the genes of bags read the regulators by spherical attention.

These are the numbers of `RegulationLayer.forward`, without its tables of scores [N, R], so that the time of a batch
grows with the genes that its bags list and not with the vocabulary. The basal gene's score b_i has a dimension of
queries and keys of its own. Values are two wide, (a_j, 0) for the regulators and (0, 1) for the basal gene:

    (sum_j s_ij a_j / n_i,  b_i / n_i)

The second column tells n_i. It is needed for what is subtracted: the part of the mean multiplicities, which has no key,
and of the gene itself where it is a regulator. Subtracting leaves a rounding error of a gene's own multiplicity in its
prediction, about 1e-7 of it in float32; the tables have none.

Letters: C cells, T genes of all packed bags, N genes of the vocabulary, R regulators, H heads, E head width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from flashsign import spherical_attention
from grn.bags import Bags
from grn.model.signed.regulation_layer import RegulationLayer

COST, COST_ON_GPU = 2.0, 11.0  # of an operation of attention relative to one of the tables, measured


def faster_than_tables(layer: RegulationLayer, cells: int, genes: int) -> bool:
    """Whether attention takes less time than the tables, for `cells` packed bags with `genes` genes in all."""
    count, width = len(layer.regulators) + 1, layer.width
    tables = layer.genes * count * (width + 2 * cells)  # the scores, and two products with the inputs
    attention = (genes + cells * (count + 1)) * (width + 1) * (width + 3)  # moments of keys and values
    return tables > (COST_ON_GPU if layer.unit.is_cuda else COST) * attention


def attend(layer: RegulationLayer, bags: Bags, multiplicity: Tensor, state: Tensor | None = None) -> Tensor:
    """The members' mean prediction for the genes of packed bags, [T] in sds of each gene.

    multiplicity [C, R]: of the regulators.   state: of each cell, int64 [C]; None: all are in the first.
    """
    with torch.autocast(multiplicity.device.type, enabled=False):
        m = layer.inputs(multiplicity.to(layer.unit), bags.basal)
        state = torch.zeros(len(m), dtype=torch.int64, device=m.device) if state is None else state
        found = [_of_member(layer, member, bags, m, state) for member in layer.of_values]
        return torch.stack(found).mean(0)


def _of_member(layer: RegulationLayer, member: int, bags: Bags, m: Tensor, state: Tensor) -> Tensor:
    """The prediction of one member, [T]. m [C, R + 1]: inputs of the layer."""
    genes, cell = bags.genes, bags.bag_of_gene()
    cells, count = m.shape
    query = layer.query[member, :, genes]  # [H, T, E]
    if layer.deviates:
        query = query + layer.deviation[member, :, state[cell], genes]
    read = torch.cat([m.new_ones(count - 1), layer.reads_depth[member, None]])
    key = layer.key[member] * read[:, None]  # [H, R + 1, E]
    basal_score = layer.log_basal[member, :, genes].exp()  # [H, T]
    amount, gain = F.softplus(layer.raw_amount[member]), F.softplus(layer.raw_gain[member, :, genes])

    q = torch.cat([query, basal_score[..., None]], -1).transpose(0, 1)
    k = F.pad(key, (0, 1, 0, 1))
    k[:, -1, -1] = 1
    v = torch.stack([F.pad(amount, (0, 1)), F.pad(torch.zeros_like(amount), (0, 1), value=1.0)], -1)
    # Every bag has the same keys and values, in multiplicities of its own.
    k, v = (each.transpose(0, 1).repeat(cells, 1, 1) for each in (k, v))
    of_keys = F.pad(m, (0, 1), value=1.0).flatten()
    starts = torch.arange(cells + 1, device=m.device) * (count + 1)
    both = spherical_attention(q, k, v, of_keys, offsets=starts, query_offsets=bags.offsets, eps=0.0).permute(2, 1, 0)
    norm = basal_score / both[1]

    number = torch.full((layer.genes,), -1, device=m.device)
    number = number.index_copy(0, layer.regulators, torch.arange(count - 1, device=m.device))[genes]
    itself, number = number >= 0, number.clamp(min=0)
    own_score = (query * key[:, number]).sum(-1) * itself  # [H, T]
    own_amount, own = amount[:, number], m[cell, number]
    # What average cells of the state have, and what the gene itself adds to both.
    average = torch.einsum("kr,hr,hre->hke", layer.centre, amount, key)[:, state[cell]]
    expected = (query * average).sum(-1)
    own_part = own_score * own_amount * (own - layer.centre[state[cell], number])
    square = norm.square() - (own_score * own).square()
    change = gain * (both[0] * norm - expected - own_part) * square.rsqrt()
    return change.sum(0) + layer.bias[member, state[cell], genes]
