"""The strongest edges where a table of all pairs does not fit in memory: bags are replayed for each tile of targets."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from flashsign.edges.edge_sums import By, EdgeSums, Over
from flashsign.edges.results import TopEdges, stacked


def top_edges(
    replay: Callable[[EdgeSums], object],
    targets: int,
    regulators: int,
    k: int,
    *,
    rows: int | None = None,
    by: By = "absolute",
    over: Over = "pairs",
    same: Tensor | None = None,
    device: torch.device | str | None = None,
) -> TopEdges:
    """The k strongest regulators of every target, without a table of all pairs; the bags are replayed instead.

    replay(sums) adds every bag to the sums that it gets. It is called once for each tile of `rows` targets; queries of
    other targets cost nothing but their padding. Memory holds targets x k edges and rows x regulators sums (by default
    at most 2^28 numbers). k, by, over, same [regulators]: as in EdgeSums.top. Returns TopEdges of [targets, k] each,
    [targets, regulators] where k is larger.
    Where the tables fit in memory, EdgeSums needs one pass only. Raises what EdgeSums and its top raise.

    Example:
        >>> import torch
        >>> from flashsign import top_edges
        >>> q, k = torch.randn(4, 2, 30, 8), torch.randn(4, 2, 50, 8)
        >>> edges = top_edges(lambda sums: sums.add(q, k), 30, 50, k=3, rows=10)
        >>> edges.regulator.shape, edges.signed.shape
        (torch.Size([30, 3]), torch.Size([30, 3]))
    """
    tables = 1 + (by == "absolute") + (over == "pairs")
    rows = max(1, 2**28 // max(1, tables * regulators)) if rows is None else rows
    found = []
    for start in range(0, targets, rows):
        tile = range(start, min(start + rows, targets))
        sums = EdgeSums(tile, regulators, absolute=by == "absolute", pairs=over == "pairs", device=device)
        replay(sums)
        found.append(sums.top(k, by=by, over=over, same=same))
    return stacked(found, min(k, regulators), by == "absolute", torch.zeros(0, device=device))
