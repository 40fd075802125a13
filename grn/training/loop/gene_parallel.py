"""Processes that share the genes of each cell, as the model sees them.

Nothing else has to know of them. Losses are sums and counts over all processes: the genes' are added up over their
parts, and the cells', which each process of a group finds whole, count as often as they are added. DDP's mean of the
gradients over all processes is then the gradient of one process that has every gene, and every process has a gradient
for each parameter.
"""

from __future__ import annotations

from torch import distributed

from grn.data.loading.gene_parallel import ParallelRank


def gene_group(rank: ParallelRank) -> distributed.ProcessGroup:
    """This process's own group; all processes make all groups, in one order.

    A group of its own also where it holds all processes: DDP's collectives run beside those of attention's backward,
    and two kinds in one queue would have to be started in one order everywhere.
    """
    groups = [distributed.new_group(ranks) for ranks in rank.ranks()]
    return groups[rank.replica]
