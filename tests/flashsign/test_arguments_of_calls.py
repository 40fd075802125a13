"""What is no tensor or no number: one sentence, from every public function."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch

import flashsign as fs

Q, K = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 5, 4)
X, W = torch.ones(6, 4), torch.ones(10, 4)
CLASSES = torch.zeros(6, dtype=torch.long)
COUNTS = torch.tensor([[1.0, 2, 3, 1, 1]])


def nothing(*_):
    return None


def nested():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([X, W])


def own(**changed):
    """A sum, some of whose functions are others."""
    functions = {
        "identity": lambda like: (torch.zeros_like(like[0]),),
        "lift": lambda items, _: items,
        "combine": lambda a, b: (a[0] + b[0],),
        "finish": lambda total, _: total[0],
    }
    return fs.Monoid("own", **(functions | changed))


def sums(**changed):
    functions = {
        "init": lambda x: (x.new_zeros(1, 4),),
        "chunker": lambda x: [((slice(None),), (slice(None),))],
        "proj_fold": lambda x: (x[0].sum(0, keepdim=True),),
        "binary_reduce": lambda p, q: (p[0] + q[0],),
        "proj_fold_bwd": lambda x, a, ga: (ga[0].expand_as(x[0]),),
    }
    return fs.NAryFold(**(functions | changed))


CALLS = {
    "q must be a tensor; found NoneType": lambda: fs.spherical_attention(None, K, K),
    "k must be a tensor; found ndarray": lambda: fs.spherical_attention(Q, np.ones(3), K),
    "q must be a dense tensor": lambda: fs.spherical_attention(Q.to_sparse(), K, K),
    "multiplicity must be a tensor; found list": lambda: fs.spherical_attention(Q, K, K, [1] * 5),
    "multiplicity must be real numbers": lambda: fs.spherical_attention(Q, K, K, torch.ones(1, 5) * 1j),
    "offsets must be a tensor": lambda: fs.spherical_attention(X, X, X, offsets=[0, 6]),
    "eps must be a finite number, not 'a'": lambda: fs.spherical_attention(Q, K, K, eps="a"),
    "eps must be a finite number, not nan": lambda: fs.spherical_attention(Q, K, K, eps=float("nan")),
    "eps must be at least 0, not -1": lambda: fs.rms_norm(X, torch.ones(4), -1),
    "multiplicity must be a tensor; found NoneType": lambda: fs.edge_weights(Q, K, None),
    "of the same cells and width": lambda: fs.edge_weights(Q, K[..., :3], torch.ones(1, 5)),
    "weight must be a tensor": lambda: fs.linear_cross_entropy(X, None, CLASSES),
    "ignore_index must be a whole number, not 0.5": lambda: fs.linear_cross_entropy(X, W, CLASSES, ignore_index=0.5),
    "x must be a tensor": lambda: fs.mlp("x", W, W),
    "monoid must be a Monoid, as flashsign.SUM, not 'sum'": lambda: fs.monoid_reduce("sum", (X,), (W,)),
    "monoid must be a Monoid, as flashsign.SUM, not None": lambda: fs.fold(None, (X,)),
    "monoid must be a Monoid, as flashsign.SUM, not 5": lambda: fs.check_monoid(5, (X,)),
    "semigroup must be a Monoid": lambda: fs.with_unit(None),
    "classes must be a whole number, not 'a'": lambda: fs.class_cross_entropy("a"),
    "found -1 to 1": lambda: fs.spherical_attention(Q, K, K, COUNTS - 2),
    "found nan to nan": lambda: fs.normalised_attention(Q, K, K, COUNTS / 0 * 0, normaliser="softmax"),
    "found 1 to inf": lambda: fs.EdgeSums(3, 5).add(Q, K, COUNTS / torch.tensor([0, 1, 1, 1, 1.0])),
    "of at least 0, as counts are; found -1 to -1": lambda: fs.edge_weights(Q, K, -torch.ones(1, 5)),
    "multiplicity must have shape": lambda: fs.edge_weights(Q, K, torch.ones(5)),
    "must be a multiple of the number of key heads": lambda: fs.edge_weights(Q[:, :1], K, COUNTS),
    "group must be a process group of torch.distributed": lambda: fs.spherical_attention(Q, K, K, group="world"),
    "method must be auto, stream or moments, not of the type ndarray": lambda: fs.spherical_attention(
        Q, K, K, method=np.array(["auto", "stream"])
    ),
    "offsets must have values": lambda: fs.spherical_attention(
        *[X[:, None].to("meta")] * 3, offsets=torch.zeros(2, dtype=torch.long, device="meta")
    ),
    "must be a multiple of the number of key heads; found q [1, 2": lambda: fs.normalised_attention(
        Q, K[:, :0], K[:, :0]
    ),
    "target must be integers [6] on cpu; found torch.complex64": lambda: fs.linear_cross_entropy(X, W, CLASSES * 1j),
    "found torch.int64 [6] on meta": lambda: fs.linear_cross_entropy(X, W, CLASSES.to("meta")),
    "classes and weights must be on h's device": lambda: fs.weighted_cross_entropy(X, W, CLASSES.to("meta"), X),
    "offsets must be int32 or int64": lambda: fs.weighted_cross_entropy(
        X[:1], W, CLASSES, X[:, 0], offsets=torch.tensor([0.0, 6])
    ),
    "down_bias must be floating [4]": lambda: fs.mlp(X, W, W.T.contiguous(), down_bias=torch.ones(4) * 1j),
    "weight must be real on cpu; found torch.float32 on meta": lambda: fs.rms_norm(X, X[0].to("meta")),
    "row_chunk must be at least 1, not 0": lambda: fs.linear_cross_entropy(X, W, CLASSES, row_chunk=0),
    "hidden_chunk must be at least 1": lambda: fs.mlp(X, W, W.T, hidden_chunk=0),
    "label_smoothing must be at least 0 and below 1": lambda: fs.class_cross_entropy(5, label_smoothing=2.0),
    "name must be a text": lambda: fs.normalised_contraction(None, abs, abs, abs),
    "a1 must be a function": lambda: fs.normalised_contraction("x", None, abs, abs),
    "offsets must rise from 0 to the 3": lambda: fs.weighted_cross_entropy(
        X[:3], W, CLASSES[:3], torch.ones(3), offsets=torch.tensor([0, 2, 1, 3])
    ),
    # Folds, and monoids of one's own.
    "monoid must be a Monoid, as flashsign.SUM, not 3": lambda: fs.Fold(3),
    "items must be a tuple of tensors, as (x,); found Tensor": lambda: fs.fold(fs.SUM, X),
    "items[0] must be a tensor; found ndarray": lambda: fs.fold(fs.SUM, (np.ones(3),)),
    "items[0] must have an axis of items": lambda: fs.fold(fs.SUM, (torch.tensor(1.0),)),
    "items must be a tuple of tensors, as (x,); found NoneType": lambda: fs.Fold(fs.SUM).add(None),
    "other must be another Fold": lambda: fs.Fold(fs.SUM).plus(fs.SUM),
    "All items of a fold must have one shape": lambda: fs.Fold(fs.SUM).add((X,)).add((W[:, :2],)),
    "softmax attention takes items (k [M, E], v [M, V], multiplicity [M]), shared (q [N, E])": lambda: fs.fold(
        fs.SOFTMAX, (X, X, torch.ones(6)), (torch.ones(1, 5),)
    ),
    "sum takes items (x [n, ...])": lambda: fs.fold_literal(fs.SUM, (X, X)),
    "A must be a tuple of tensors": lambda: fs.monoid_reduce(fs.SOFTMAX, X, (W, W, torch.ones(10))),
    "batch_dims must be at least 0": lambda: fs.monoid_reduce(fs.SUM, (), (X,), batch_dims=-1),
    "combine must be a function, not None": lambda: fs.Monoid("x", None, None, None, None),
    "The lift of own must return a tuple of tensors, as (x,); found NoneType": lambda: fs.fold(own(lift=nothing), (X,)),
    "The lift of own must return a tuple of tensors, as (x,); found Tensor": lambda: fs.fold(
        own(lift=lambda items, _: items[0]), (X,)
    ),
    "The combine of own must return a tuple of tensors": lambda: fs.check_monoid(own(combine=nothing), (X,)),
    "as many tensors as it is given; found 2 for 1": lambda: fs.fold(own(combine=lambda a, b: (*a, *b)), (X,)),
    "The identity of own must return": lambda: fs.fold(own(identity=nothing), (X,)),
    "The finish of own must return a tensor": lambda: fs.monoid_reduce(own(finish=nothing), (), (X,)),
    "of_a is 5, and the total of sum has 1 tensors": lambda: fs.fold(
        fs.product(fs.SUM, fs.SUM, lambda total, _: total[0], of_a=5), (X,)
    ),
    "shared_weight is (0, 3)": lambda: fs.fold(
        fs.product(fs.SUM, fs.SUM, lambda total, _: total[0], of_a=1, shared_weight=(0, 3)), (X,)
    ),
    "finish must be a function": lambda: fs.product(fs.SUM, fs.SUM, None, of_a=1),
    "form must be an NAryFold": lambda: fs.n_ary_reduce(None, X),
    "x must be a tensor; found ndarray": lambda: fs.n_ary_reduce(sums(), np.ones(3)),
    "proj_fold of an NAryFold must return a tuple of tensors": lambda: fs.n_ary_reduce(sums(proj_fold=nothing), X),
    "proj_fold_bwd of an NAryFold must return a gradient for each": lambda: (
        fs.n_ary_reduce(sums(proj_fold_bwd=nothing), X.clone().requires_grad_())[0].sum().backward()
    ),
    "binary_reduce of an NAryFold gave tensors shaped [[6, 4]] for a part of the total shaped [[1, 4]]": lambda: (
        fs.n_ary_reduce(sums(proj_fold=lambda x: x), X)
    ),
    "a1 of L1 must return a tensor; found NoneType": lambda: fs.monoid_reduce(
        fs.normalised_contraction("L1", nothing, torch.abs, torch.abs), (X,), (W, W, torch.ones(10))
    ),
    "own breaks a law, a fold of one item is its lift": lambda: fs.check_monoid(
        own(combine=lambda a, b: ((a[0] + b[0]).int(),)), (X * 0.5,)
    ),
    "found -1 to -1": lambda: fs.monoid_reduce(fs.SOFTMAX, (X,), (W, W, -torch.ones(10))),
    "softmax attention takes q, k and v of one dtype": lambda: fs.monoid_reduce(
        fs.SOFTMAX, (X,), (W, W.double(), torch.ones(10))
    ),
    "chunker of an NAryFold must return slices": lambda: fs.n_ary_reduce(sums(chunker=nothing), X),
    "must give pairs (aslice, xslice)": lambda: fs.n_ary_reduce(sums(chunker=lambda x: [slice(0, 2)]), X),
    "init must be a function": lambda: sums(init=None),
    "The lift of own must return a total for each of 6 items": lambda: fs.fold(
        own(lift=lambda items, _: (items[0][:1],)), (X,)
    ),
    "The identity of own must return tensors shaped like those": lambda: fs.fold(own(identity=lambda like: (W,)), (X,)),
    "The combine of own must return tensors shaped like those that it is given; found [2, 3, 4]": lambda: fs.fold(
        own(combine=lambda a, b: (torch.stack([a[0], b[0]]),)), (X,)
    ),
    "sum takes real numbers on one device; found torch.complex64 on cpu": lambda: fs.fold(fs.SUM, (X * 1j,)),
    "found torch.float32 on cpu, torch.float32 on meta": lambda: fs.fold(fs.WEIGHTED_SUM, (X, X[:, 0].to("meta"))),
    "tolerance must be at least 0": lambda: fs.check_monoid(fs.SUM, (X,), tolerance=-1),
    "q must be a dense tensor; found a nested one": lambda: fs.spherical_attention(nested(), K, K),
    "cross entropy with classes takes integers as target; found torch.float32": lambda: fs.fold(
        fs.class_cross_entropy(10), (W,), (X, X[:, 0])
    ),
    "where must be bool with one value an item, [6]; found torch.bool [6] on meta": lambda: fs.fold(
        fs.SUM, (X,), where=torch.ones(6, dtype=torch.bool, device="meta")
    ),
    "sum has no depth 0": lambda: fs.fold(fs.SUM, (X,), depth=0),
    # Edge sums.
    "inverse must hold finite numbers": lambda: fs.EdgeSums(3, 5).add(Q, K, inverse=torch.full((1, 2, 3), torch.nan)),
    "same is on the device meta": lambda: fs.EdgeSums(3, 5).top(
        2, same=torch.zeros(5, dtype=torch.long, device="meta")
    ),
    "targets must be at least 0, not -1": lambda: fs.EdgeSums(-1, 5),
    "targets must be a number or a range of step 1; found 3.0": lambda: fs.EdgeSums(3.0, 5),
    "dtype must be a floating dtype of torch, as torch.float32, not 'float32'": lambda: fs.EdgeSums(
        3, 5, dtype="float32"
    ),
    "as torch.float32, not torch.int32": lambda: fs.EdgeSums(3, 5, dtype=torch.int32),
    "device must be a device of torch, as 'cpu' or 'cuda:0', not 'gpu'": lambda: fs.EdgeSums(3, 5, device="gpu"),
    "absolute must be True or False": lambda: fs.EdgeSums(3, 5, absolute="no"),
    "other must be other EdgeSums": lambda: fs.EdgeSums(3, 5).plus(None),
    "rows must be a slice": lambda: fs.EdgeSums(3, 5).mean(1),
    "k must be at least 0, not -2": lambda: fs.EdgeSums(3, 5).top(-2),
    "same must be integers [5]": lambda: fs.EdgeSums(3, 5).top(2, same=torch.tensor([0])),
    "replay must be a function": lambda: fs.top_edges(None, 3, 5, 2),
    "rows must be at least 1": lambda: fs.top_edges(print, 3, 5, 2, rows=0),
}


@pytest.mark.parametrize("sentence", CALLS)
def test_what_is_no_tensor_or_no_number_is_one_sentence(sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        CALLS[sentence]()
    assert "\n" not in str(refused.value) and str(refused.value).endswith(".")


def test_tensors_are_refused_by_the_error_that_the_docs_name():
    with pytest.raises(fs.ShapeMismatch):
        fs.spherical_attention(None, K, K)
    assert fs.spherical_attention(Q, K, K, eps=np.float32(0.1)).shape == Q.shape


def test_arguments_that_a_function_does_not_have_are_named():
    with pytest.raises(
        TypeError, match=r"^spherical_attention has no argument multiplicty; did you mean multiplicity\?$"
    ):
        fs.spherical_attention(Q, K, K, multiplicty=None)
    with pytest.raises(TypeError, match=r"^spherical_attention: missing a required argument: 'v'; give it\.$"):
        fs.spherical_attention(Q, K)
    with pytest.raises(TypeError, match=r"^EdgeSums: missing a required argument: 'regulators'; give it\.$"):
        fs.EdgeSums(3)


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(fs.BackendUnavailable, match=r"device is 'cuda:97', and torch finds \d+ CUDA devices"):
        fs.EdgeSums(3, 5, device="cuda:97")


def test_a_multiplicity_that_is_varied_may_step_below_zero():
    counts = torch.tensor([[0.0, 1.0, 2.0, 0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    q, k = torch.randn(1, 2, 3, 4, dtype=torch.float64), torch.randn(1, 2, 5, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda m: fs.spherical_attention(q, k, k, m), counts)
    assert fs.spherical_attention(q, k, k, counts.detach() > 0).isfinite().all()


def test_shapes_are_found_without_values():
    on_meta = (x.to("meta") for x in (Q, K, K, COUNTS))
    assert fs.spherical_attention(*on_meta).shape == Q.shape
