"""Items over processes: every layer and its gradients are those of one process that has all items.

Run as a script (`test_over_group.py RANK RANKS FOLDER`), this file is one such process: it saves what it found.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from gloo import found_by_all, in_group
from monoid_cases import ROWS
from torch import distributed

from flashsign import SOFTMAX, SUM, monoid_reduce

ITEMS = (5, 0, 8)
"""Of each rank."""
RANKS = range(1, 1 + len(ITEMS))
CASES = [(name, depth) for name, row in ROWS.items() if name != "RMSNorm" for depth in row.monoid.depths]
"""All but RMSNorm: its finish makes a row of every item, so it is no layer of monoid_reduce, on one process neither.
The total that it needs over processes is SUM's: rms_norm below."""


def call(name, depth, ranks, rank=None, group=None):
    """Output and gradients of one rank, or of one process with all items, and how many gradients are of shared rows."""
    row = ROWS[name]
    items, shared = row.items(0, sum(ITEMS[:ranks]))
    if rank is not None:
        start = sum(ITEMS[:rank])
        items = tuple(x[start : start + ITEMS[rank]] for x in items)
    a, b = ([x.requires_grad_(x.is_floating_point()) for x in each] for each in (shared, items))
    options = {"a_chunk": 2, "b_chunk": 2, "depth": depth, "group": group}
    output = monoid_reduce(row.monoid, tuple(a), tuple(b), **options)
    # Each rank has a loss of its own; the gradient is that of their sum.
    factors = [float(1 + each) for each in range(ranks)] if rank is None else [1.0 + rank]
    loss = sum(factor * output.sin().sum() for factor in factors)
    leaves = [x for x in (*a, *b) if x.requires_grad]
    found = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return output.detach(), found[: sum(x.requires_grad for x in a)], found[sum(x.requires_grad for x in a) :]


def rms_norm(ranks, rank=None, group=None):
    """RMSNorm of features that are split over processes, each with its own features' outputs; and its gradient."""
    (x,), _ = ROWS["RMSNorm"].items(0, sum(ITEMS[:ranks]))
    count = len(x)
    if rank is not None:
        start = sum(ITEMS[:rank])
        x = x[start : start + ITEMS[rank]]
    x.requires_grad_()
    output = x / (monoid_reduce(SUM, (), (x.square(),), b_chunk=2, group=group) / count + 1e-6).sqrt()
    (found,) = torch.autograd.grad(output.sin().sum(), x)
    return output.detach(), found


def refused(group):
    found = []
    (k, v, m), (q,) = ROWS["softmax"].items(0, 4)

    def attend(q):
        return monoid_reduce(SOFTMAX, (q,), (k, v, m), group=group)

    for ask in (
        lambda q: torch.autograd.grad(attend(q).sum(), q, create_graph=True),
        lambda q: torch.func.jvp(attend, (q,), (q,)),
    ):
        try:
            ask(q.clone().requires_grad_())
        except NotImplementedError as error:
            found.append(str(error))
    return found


def process(rank: int, ranks: int, folder: Path) -> None:
    with in_group(rank, ranks, folder) as world:
        found = {"refused": refused(world)}
        for size in RANKS:
            group = distributed.new_group(list(range(size)))
            if rank < size:
                found[size] = {case: call(*case, size, rank, group) for case in CASES}
                found[size]["RMSNorm"] = rms_norm(size, rank, group)
        torch.save(found, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of three processes found."""
    return found_by_all(__file__, len(ITEMS), tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("name", "depth"), CASES)
def test_items_over_processes_give_the_layer_of_one_process(found, ranks, name, depth):
    output, of_rows, of_items = call(name, depth, ranks)
    each = [rank[ranks][name, depth] for rank in found[:ranks]]
    for own, _, _ in each:
        torch.testing.assert_close(own, output)
        assert own.equal(each[0][0])  # every rank has the same bits
    for parts, true in zip(zip(*(rank[1] for rank in each), strict=True), of_rows, strict=True):
        torch.testing.assert_close(sum(parts), true)  # a gradient of rows that all ranks share has a part on each
    for parts, true in zip(zip(*(rank[2] for rank in each), strict=True), of_items, strict=True):
        torch.testing.assert_close(torch.cat(parts), true)


@pytest.mark.parametrize("ranks", RANKS)
def test_features_over_processes_give_the_rms_norm_of_one_process(found, ranks):
    (x,), _ = ROWS["RMSNorm"].items(0, sum(ITEMS[:ranks]))
    x.requires_grad_()
    output = torch.nn.functional.rms_norm(x.T, (len(x),), eps=1e-6).T
    (slope,) = torch.autograd.grad(output.sin().sum(), x)
    for part, true in zip(
        zip(*(rank[ranks]["RMSNorm"] for rank in found[:ranks]), strict=True), (output, slope), strict=True
    ):
        torch.testing.assert_close(torch.cat(part), true)


def test_more_than_one_derivative_in_reverse_is_refused(found):
    for rank in found:
        assert len(rank["refused"]) == 2 and all("differentiated once, in reverse" in each for each in rank["refused"])


if __name__ == "__main__":
    process(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
