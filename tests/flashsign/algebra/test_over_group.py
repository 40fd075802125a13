"""Items over processes: the layer and its gradients are those of one process that has all items.

Run as a script (`test_over_group.py RANK RANKS FOLDER`), this file is one such process: it saves what it found.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from gloo import found_by_all, in_group
from torch import distributed

from flashsign import SOFTMAX, SUM, class_cross_entropy, mlp_monoid, monoid_reduce, spherical_monoid

ITEMS, ROWS, WIDTH = (5, 0, 8), 4, 3


def normal(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention(ranks):
    items = sum(ITEMS[:ranks])
    return (normal(ROWS, WIDTH, seed=1),), (
        normal(items, WIDTH, seed=2),
        normal(items, WIDTH, seed=3),
        torch.ones(items),
    )


def classes(ranks):
    target = torch.tensor([0, sum(ITEMS[:ranks]) - 1, -100, 3])
    return (normal(ROWS, WIDTH, seed=1), target), (normal(sum(ITEMS[:ranks]), WIDTH, seed=2),)


def hidden(ranks):
    return attention(ranks)[0], attention(ranks)[1][:2]


CASES = {
    "softmax": (SOFTMAX, attention),
    "spherical": (spherical_monoid(), attention),
    "cross entropy": (class_cross_entropy(100), classes),
    "MLP": (mlp_monoid("silu"), hidden),
}


def call(name, ranks, rank=None, group=None):
    """Output and gradients of one rank, or of one process with all items."""
    monoid, draw = CASES[name]
    a, b = draw(ranks)
    if rank is not None:
        start = sum(ITEMS[:rank])
        b = tuple(x[start : start + ITEMS[rank]] for x in b)
    a, b = ([x.requires_grad_(x.is_floating_point()) for x in each] for each in (a, b))
    output = monoid_reduce(monoid, tuple(a), tuple(b), a_chunk=3, b_chunk=2, group=group)
    # Each rank has a loss of its own; the gradient is that of their sum.
    factors = [float(1 + each) for each in range(ranks)] if rank is None else [1.0 + rank]
    loss = sum(factor * output.sin().sum() for factor in factors)
    leaves = [x for x in (*a, *b) if x.requires_grad]
    return [output.detach(), *torch.autograd.grad(loss, leaves)]


def refused(group):
    found = {}
    a, b = attention(2)
    for name, ask in {
        "second": lambda q: torch.autograd.grad(attend(q).sum(), q, create_graph=True),
        "forward": lambda q: torch.func.jvp(attend, (q,), (q,)),
    }.items():

        def attend(q):
            return monoid_reduce(SOFTMAX, (q,), b, group=group)

        try:
            ask(a[0].clone().requires_grad_())
        except NotImplementedError as error:
            found[name] = str(error)
    return found


def process(rank: int, ranks: int, folder: Path) -> None:
    with in_group(rank, ranks, folder) as group:
        found = {name: call(name, ranks, rank, group) for name in CASES}
        found["refused"] = refused(group)
        torch.save(found, folder / f"{rank}.pt")


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, tmp_path_factory):
    """What each of 2 and of 3 processes found."""
    return found_by_all(__file__, request.param, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", CASES)
def test_items_over_processes_give_the_layer_of_one_process(ranks, name):
    expected = call(name, len(ranks))
    rows = len([x for x in CASES[name][1](len(ranks))[0] if x.is_floating_point()])
    output, *gradients = zip(*(rank[name] for rank in ranks), strict=True)
    for found in output:
        torch.testing.assert_close(found, expected[0])
        assert found.equal(output[0])  # every rank has the same bits
    for found, true in zip(gradients[:rows], expected[1:], strict=False):
        torch.testing.assert_close(sum(found), true)  # A's gradient has a part on each rank
    for found, true in zip(gradients[rows:], expected[1 + rows :], strict=True):
        torch.testing.assert_close(torch.cat(found), true)


@pytest.mark.parametrize("ask", ["second", "forward"])
def test_more_than_one_derivative_in_reverse_is_refused(ranks, ask):
    for rank in ranks:
        assert rank["refused"][ask].startswith("A fold with group= can be differentiated once, in reverse")


def test_a_process_outside_of_the_group_is_refused(monkeypatch):
    monkeypatch.setattr(distributed, "get_rank", lambda group: -1)
    with pytest.raises(ValueError, match="This process is not in the group"):
        monoid_reduce(SUM, (), (torch.ones(3),), group=distributed.GroupMember.NON_GROUP_MEMBER)


if __name__ == "__main__":
    process(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
