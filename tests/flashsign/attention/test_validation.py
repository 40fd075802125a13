"""Calls that would give a wrong answer in silence, or that are likely mistakes, are refused by
their own error.
"""

from dataclasses import replace

import pytest
import torch

import flashsign as fs
from flashsign import ShapeMismatch, spherical_attention

Q, K = (2, 4, 7, 3), (2, 2, 9, 3)
X, W = torch.ones(6, 4), torch.ones(10, 4)
CLASSES = torch.zeros(6, dtype=torch.long)
COUNTS = torch.tensor([[1.0, 2, 3, 1, 1]])
ROWS = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 5, 4)


@pytest.mark.parametrize(
    "shapes",
    [
        (Q[1:], K, K),
        (Q, K, (2, 2, 8, 3)),
        (Q, (2, 2, 9, 5), (2, 2, 9, 5)),
        (Q, (2, 3, 9, 3), (2, 3, 9, 3)),
        (Q, (2, 0, 9, 3), (2, 0, 9, 3)),
        (Q, (1, 2, 9, 3), (1, 2, 9, 3)),
        (Q, K, K, (2, 7)),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_refused(shapes):
    with pytest.raises(ShapeMismatch):
        spherical_attention(*(torch.zeros(shape) for shape in shapes))


def own(**changed):
    """A sum, some of whose functions are others."""
    return fs.fold(replace(fs.SUM, name="own", **changed), (X,))


REFUSED = {
    "dtypes": lambda: spherical_attention(torch.zeros(Q).half(), torch.zeros(K), torch.zeros(K)),
    "devices": lambda: spherical_attention(
        torch.zeros(Q, device="meta"), torch.zeros(K), torch.zeros(K)
    ),
    "negative counts": lambda: spherical_attention(*ROWS, ROWS[1], COUNTS - 2),
    "infinite counts": lambda: fs.EdgeSums(3, 5).add(
        *ROWS, COUNTS / torch.tensor([0, 1, 1, 1, 1.0])
    ),
    "NaN counts": lambda: fs.normalised_attention(
        *ROWS, ROWS[1], COUNTS / 0 * 0, normaliser="softmax"
    ),
    "a target that is no class": lambda: fs.linear_cross_entropy(X, W, CLASSES + 10),
    "offsets with a fraction": lambda: fs.weighted_cross_entropy(
        X[:1], W, CLASSES, X[:, 0], offsets=X[0, :2]
    ),
    "a tensor in place of a tuple": lambda: fs.fold(fs.SUM, X),
    "a tensor in place of a tuple of rows": lambda: fs.monoid_reduce(fs.SUM, X, (W,)),
    "items of another shape": lambda: fs.Fold(fs.SUM).add((X,)).add((W[:, :2],)),
    "no items in a chunk": lambda: fs.fold(fs.SUM, (X,), chunk=-1),
    "a lift that returns a tensor": lambda: own(lift=lambda items, _: items[0]),
    "a lift of other items": lambda: own(lift=lambda items, _: (items[0][:1],)),
    "too many of a total": lambda: fs.fold(
        fs.product(fs.SUM, fs.SUM, lambda t, _: t[0], of_a=5), (X,)
    ),
    "a method": lambda: spherical_attention(*ROWS, ROWS[1], method="fast"),
    "a backend": lambda: spherical_attention(*ROWS, ROWS[1], backend="cuda"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_call_that_would_be_wrong_in_silence_is_refused(mistake):
    with pytest.raises(ValueError):
        REFUSED[mistake]()


PACKED = torch.ones(6, 2, 4)


def packed(q, k, m):
    return spherical_attention(
        q, k, k, m, offsets=torch.tensor([0, 2, 5]), query_offsets=torch.tensor([0, 1, 3])
    )


CALLS = {
    "attention": lambda q, k, m: spherical_attention(q, k, k, m),
    "packed": lambda q, k, m: packed(q[0].transpose(0, 1), k[0].transpose(0, 1), m[0]),
    "other normalisers": lambda q, k, m: fs.normalised_attention(q, k, k, m, normaliser="softmax"),
    "weights": fs.edge_weights,
    "edge sums": lambda q, k, m: fs.EdgeSums(3, 5).add(q, k, m).signed,
    "tables": lambda q, k, m: fs.attention_by_scores(q[0] @ k[0].mT, k[0], m),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint64, torch.int8, torch.int64], ids=str)
def test_multiplicities_may_be_integers_of_any_kind(dtype, call):
    torch.manual_seed(0)
    q = torch.randn(1, 2, 3, 4)
    k = torch.randn(1, 2, 5, 4)
    counts = torch.tensor([[0, 3, 1, 0, 120]], dtype=dtype)
    torch.testing.assert_close(CALLS[call](q, k, counts), CALLS[call](q, k, counts.float()))


@pytest.mark.parametrize("name", ["q", "k", "v", "multiplicity", "offsets", "query_offsets"])
def test_what_is_no_tensor_is_refused(name):
    offsets = torch.tensor([0, 2, 6])
    given = {"q": PACKED, "k": PACKED, "v": PACKED, "multiplicity": torch.ones(6)}
    given |= {"offsets": offsets, "query_offsets": offsets}
    with pytest.raises(ShapeMismatch, match=name):
        spherical_attention(**given | {name: given[name].numpy()})
    if name in ("q", "k", "multiplicity"):
        rows = dict(zip(("q", "k", "multiplicity"), (*ROWS, COUNTS), strict=True))
        rows[name] = rows[name].tolist()
        for call in ("attention", "other normalisers", "weights", "edge sums"):
            with pytest.raises(ShapeMismatch):
                CALLS[call](*rows.values())


@pytest.mark.parametrize(
    "offsets",
    [
        torch.tensor([0, 4]),
        torch.tensor([1, 6]),
        torch.tensor([0, 5, 4, 6]),
        torch.tensor([[0, 6]]),
        torch.tensor([0, 6], device="meta"),
        torch.tensor([0, 6], dtype=torch.int8),  # these could run over
        torch.tensor([0, 6], dtype=torch.uint8),
        torch.tensor([0.0, 6.0]),
    ],
    ids=str,
)
def test_offsets_that_do_not_cut_the_rows_are_refused(offsets):
    rows = torch.randn(6, 2, 3)
    with pytest.raises(ShapeMismatch):
        spherical_attention(rows, rows, rows, offsets=offsets)


def test_offsets_of_queries_and_keys_belong_together(bag):
    rows = torch.randn(6, 2, 3)
    with pytest.raises(ShapeMismatch):
        spherical_attention(
            rows, rows, rows, offsets=torch.tensor([0, 2, 6]), query_offsets=torch.tensor([0, 6])
        )
    with pytest.raises(ShapeMismatch):
        spherical_attention(*bag[:4], query_offsets=torch.tensor([0, 2]))


def test_a_multiplicity_that_is_varied_may_step_below_zero():
    counts = torch.tensor([[0.0, 1.0, 2.0, 0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    q = torch.randn(1, 2, 3, 4, dtype=torch.float64)
    k = torch.randn(1, 2, 5, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda m: spherical_attention(q, k, k, m), counts)
    assert spherical_attention(q, k, k, counts.detach() > 0).isfinite().all()
