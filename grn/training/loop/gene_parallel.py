"""Gene parallelism in training: the process groups that share the genes of their cells.

The rest of training needs no special case. Losses are sums and counts over all processes: those of genes are summed
over the parts, and those of cells, which each process of a group computes for the whole cell, are counted as often as
they are summed. DDP's mean of the gradients over all processes is then the gradient of one process that has every gene,
and every process has a gradient for each parameter.
"""

from __future__ import annotations

from torch import distributed

from grn.cells.loading.order import ParallelRank


def gene_parallel_group(rank: ParallelRank) -> distributed.ProcessGroup:
    """The group of this process. Every process has to call this: all make all groups, in the same order.

    The group is a separate one even where it contains all processes. DDP's collectives run at the same time as those of
    attention's backward, and two kinds in one queue would have to be started in the same order everywhere.
    """
    groups = [distributed.new_group(ranks) for ranks in rank.ranks()]
    return groups[rank.replica]
