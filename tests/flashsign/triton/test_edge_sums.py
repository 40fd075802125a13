"""The kernel of edge sums against float64: on a GPU where there is one, else in Triton's
interpreter.
"""

import pytest
import torch
from kernel_cases import DEVICE, poison  # noqa: F401

from flashsign import EdgeSums, edge_weights
from flashsign.tuning.accuracy import error

pytest.importorskip("triton")
edge_sums = pytest.importorskip("flashsign.triton.edge_sums")


def drawn(cells=2, heads=4, key_heads=2, queries=30, keys=40, width=16, dtype=torch.float32):
    random = torch.Generator().manual_seed(0)
    q = torch.randn(cells, heads, queries, width, generator=random).to(DEVICE, dtype)
    k = torch.randn(cells, key_heads, keys, width, generator=random).to(DEVICE, dtype)
    m = (torch.rand(cells, keys, generator=random) * 2 + 0.1).to(DEVICE)
    m[:, 3::7] = 0
    return q, k, m


def kernel(q, k, m) -> EdgeSums:
    return EdgeSums(q.shape[2], k.shape[2], device=q.device).add(q, k, m, backend="triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"queries": 1, "keys": 7},
        {"queries": 67, "keys": 3, "heads": 2, "key_heads": 1},
        {"width": 20, "keys": 33},
        {"width": 33, "heads": 2},
        {"width": 64, "queries": 9, "keys": 150, "cells": 1},
        {"queries": 140, "keys": 140, "cells": 1, "heads": 2},
    ],
    ids=str,
)
def test_sums_are_those_of_the_weights(sizes, dtype):
    """Signed means cancel, so errors count for more: a few units in the last place."""
    q, k, m = drawn(dtype=dtype, **sizes)
    found = kernel(q, k, m).mean(over="targets")
    weights = edge_weights(q.double(), k.double(), m.double())
    for table, expected in zip(
        found, (weights.mean((0, 1)), weights.abs().mean((0, 1))), strict=True
    ):
        assert error(table, expected) < 4 * torch.finfo(dtype).eps


def test_the_kernel_adds_to_existing_sums_and_counts():
    q, k, m = drawn(cells=3)
    found = (
        EdgeSums(30, 40, device=DEVICE)
        .add(q[:1], k[:1], m[:1])
        .add(q[1:], k[1:], m[1:], backend="triton")
    )
    torch.testing.assert_close(found.signed, kernel(q, k, m).signed)
    assert found.listed.tolist() == [3] * 30 and found.pairs.eq(3 * (m[0] != 0)).all()


def test_packed_bags_are_those_of_torch():
    q, k, m = drawn(cells=1, width=20)
    random = torch.Generator().manual_seed(2)
    offsets, query_offsets = (
        torch.tensor(x, device=DEVICE) for x in ([0, 5, 5, 33, 40], [0, 3, 10, 29, 30])
    )
    targets, regulators = (
        torch.cat([torch.randperm(35, generator=random)[:n] for n in x.diff().tolist()]).to(DEVICE)
        for x in (query_offsets, offsets)
    )
    packed = (q[0].transpose(0, 1), k[0].transpose(0, 1), m[0])
    own = {
        "offsets": offsets,
        "query_offsets": query_offsets,
        "targets": targets,
        "regulators": regulators,
    }
    found, plain = (
        EdgeSums(35, 33, device=DEVICE).add(*packed, **own, backend=x) for x in ("triton", "torch")
    )
    assert torch.equal(found.pairs, plain.pairs) and torch.equal(found.listed, plain.listed)
    torch.testing.assert_close(found.signed, plain.signed)
    torch.testing.assert_close(found.absolute, plain.absolute)


def test_absent_keys_do_no_harm_and_a_large_multiplicity_fits():
    q, k, m = drawn(dtype=torch.float16)
    m[:, 5] = 1e5
    k[:, :, 3] = torch.nan
    found = kernel(q, k, m).mean(over="targets")
    weights = edge_weights(q.double(), k.double(), m.double())
    torch.testing.assert_close(found.signed.double(), weights.mean((0, 1)), rtol=0, atol=4e-3)


def test_the_same_call_twice_gives_the_same_bits():
    call = drawn(queries=140, keys=150, cells=1)
    first, second = kernel(*call), kernel(*call)
    assert torch.equal(first.signed, second.signed) and torch.equal(first.absolute, second.absolute)
