"""Mistakes that torch or Python would answer for, or with another cause: each is one sentence of flashsign's."""

from __future__ import annotations

import re
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

import flashsign as fs
from flashsign import dispatch
from flashsign.algebra.in_slices.plan import Order
from flashsign.algebra.rows.mlp import Activation
from flashsign.arguments import OPTIONS
from flashsign.edges.edge_sums import By, Over
from flashsign.layers.cross_entropy import Reduction
from flashsign.reference import Normaliser

X = torch.randn(10, 3)
Q = torch.randn(30, 2, 4)
H, W = torch.randn(6, 8), torch.randn(20, 8)
WHOLE = torch.arange(10)


def monoid(**changes) -> fs.Monoid:
    """Sums of a caller's own, with changes."""
    functions = {
        "identity": lambda like: tuple(torch.zeros_like(x) for x in like),
        "lift": lambda items, _: items,
        "combine": lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)),
        "finish": lambda total, _: total[0],
    }
    return fs.Monoid("mine", **{**functions, **changes})


def gradients(**changes) -> None:
    fs.monoid_reduce(monoid(**changes), (), (X.clone().requires_grad_(),)).sum().backward()


def projected(backward) -> None:
    gradients(local_gradient=lambda c, i, g: g, proj_fold=lambda s, items: (items[0].sum(0),), proj_fold_bwd=backward)


def n_ary(*, init=lambda x: (x.new_zeros(1),), backward) -> None:
    form = fs.NAryFold(
        init,
        lambda x: [((slice(None),), (slice(0, 10),))],
        lambda x: (x[0].sum(0, keepdim=True),),
        lambda p, q: (p[0] + q[0],),
        backward,
    )
    fs.n_ary_reduce(form, X[:, 0].clone().requires_grad_())[0].sum().backward()


def with_slices(chunker) -> fs.NAryFold:
    return fs.NAryFold(
        lambda x: (x.new_zeros(3),),
        chunker,
        lambda x: (x[0].reshape(-1, 3).sum(0),),
        lambda p, q: (p[0] + q[0],),
        lambda x, a, ga: (ga[0].expand_as(x[0]),),
    )


MISTAKES = {
    "found 0 to 30 over 3 bags, and 10 after 20 in place 2": lambda: fs.spherical_attention(
        Q, Q, Q, offsets=torch.tensor([0, 20, 10, 30])
    ),
    "q must be a tensor; found NoneType, pass one.": lambda: fs.spherical_attention(None, Q, Q),
    "up must be a tensor; found Linear, pass its parameter, as layer.weight.": lambda: fs.mlp(
        H, torch.nn.Linear(8, 4), W
    ),
    "reduction must be none, sum or mean, not None": lambda: fs.linear_cross_entropy(H, W, WHOLE[:6], reduction=None),
    "other must be another Fold, not of the type Tensor": lambda: fs.Fold(fs.SUM).plus(X),
    "has no depth 3, because where= masks lifted items; found depths [1, 2].": lambda: fs.fold(
        fs.SUM, (X,), where=WHOLE > 3, depth=3
    ),
    "these items or shared tensors of mine have NaN": lambda: fs.check_monoid(monoid(), (X * float("nan"),)),
    "This fold begins with -inf, which is no torch.int64": lambda: fs.fold(fs.MAX, (WHOLE,)),
    "begins with -inf, which is no torch.int64; pass numbers": lambda: fs.fold(fs.LOG_SUM_EXP, (WHOLE,)),
    "This fold begins with 0, which is no torch.bool": lambda: fs.fold(fs.SUM, (X > 0,)),
    "forms must be a tuple of texts": lambda: monoid(forms="(x [M])"),
    "The lift of mine is called with 2 arguments, and it takes (items).": lambda: fs.fold(
        monoid(lift=lambda items: items), (X,)
    ),
    "The finish of mine is called with 2 arguments": lambda: fs.monoid_reduce(
        monoid(finish=lambda total: total[0]), (), (X,)
    ),
    "init of an NAryFold is called with 1 argument, and it takes ().": lambda: n_ary(
        init=lambda: (X,), backward=lambda x, a, ga: ga
    ),
    "The local_gradient of mine must return a gradient for each of 1 tensors; found 2.": lambda: gradients(
        local_gradient=lambda c, i, g: (g[0], g[0])
    ),
    "The local_gradient of mine must return gradients shaped like": lambda: gradients(
        local_gradient=lambda c, i, g: (g[0][..., :2],)
    ),
    "The proj_fold_bwd of mine must return two tuples": lambda: projected(lambda s, i, t, g: g),
    "shaped like the tensors that they are of; found [3] for [10] in place 0": lambda: n_ary(
        backward=lambda x, a, ga: (ga[0].expand(3),)
    ),
    "a2 of sums must work element by element; found [] for [6, 20].": lambda: fs.monoid_reduce(
        fs.normalised_contraction("sums", lambda s: s, torch.sum, torch.abs), (H,), (W, W, torch.ones(20))
    ),
    "dtype must be a floating dtype of torch": lambda: dispatch.plan((1, 8, 30, 64), dtype="float16"),
    "queries must be a shape [C, heads, rows, E] of whole numbers; found [1, 8, 64].": lambda: dispatch.plan(
        (1, 8, 64)
    ),
    "keys must be a shape [rows, heads, E]": lambda: dispatch.plan((9, 8, 64), (1, 9, 8, 64), bags=1),
    "method must be auto, stream or moments, not 'fast'": lambda: dispatch.plan((1, 8, 30, 64), method="fast"),
    "queries must be a shape, as q.shape; found 3000.": lambda: dispatch.plan(3000),
    "keys must be a shape, as q.shape; found the type Tensor.": lambda: dispatch.plan((1, 8, 30, 64), Q),
    "replay is called with 1 argument, and it takes ().": lambda: fs.top_edges(lambda: None, 6, 5, k=3),
    "q has 30 packed rows and k 20, which the same offsets cannot cut: pass query_offsets, too.": lambda: (
        fs.spherical_attention(Q, Q[:20], Q[:20], offsets=torch.tensor([0, 10, 20]))
    ),
    "a row of h each; found classes [6] and weights [6]; for packed rows, pass offsets.": lambda: (
        fs.weighted_cross_entropy(H, W, WHOLE[:6], torch.ones(6))
    ),
    "target has 30, which is none of the 20 classes.": lambda: fs.monoid_reduce(
        fs.class_cross_entropy(20), (H, torch.full((6,), 30)), (W,)
    ),
    "target has 5, which is none of the 0 classes.": lambda: fs.monoid_reduce(
        fs.class_cross_entropy(0), (H, torch.full((6,), 5)), (W,)
    ),
    "q must be a tensor; found list, join its tensors with torch.stack.": lambda: fs.spherical_attention([Q, Q], Q, Q),
    "q must be a tensor; found list, join its tensors with torch.cat.": lambda: fs.spherical_attention(
        [Q, Q[:4]], Q, Q
    ),
    "x must be a tensor; found DataFrame, make one with torch.as_tensor and its to_numpy().": lambda: fs.rms_norm(
        pd.DataFrame({"a": [1.0]})
    ),
    "x must be a tensor; found csr_matrix, make one with torch.as_tensor and its toarray().": lambda: fs.rms_norm(
        sparse.csr_matrix(np.ones((2, 2)))
    ),
    "x must be a tensor; found dict, pass one.": lambda: fs.rms_norm({"x": X}),
    "gate must be a tensor; found str, pass one.": lambda: fs.mlp(X, X, X.T, gate="silu"),
    "x must be a tensor; found list, make one with torch.as_tensor.": lambda: fs.rms_norm([[1.0, 2.0]]),
    "tests gradients, too, and nothing here has a floating dtype; found items torch.int64 of sum": lambda: (
        fs.check_monoid(fs.SUM, (WHOLE,))
    ),
    "gave the index 99 into a tensor [10, 3], which torch refuses (index 99 is": lambda: fs.n_ary_reduce(
        with_slices(lambda x: [((slice(None),), (99,))]), X
    ),
    "chunker of an NAryFold must give indices made of slices and integers; found 'a'": lambda: fs.n_ary_reduce(
        with_slices(lambda x: [(("a",), (slice(0, 2),))]), X
    ),
    "chunker of an NAryFold must give indices made of slices and integers; found tensor([0])": lambda: fs.n_ary_reduce(
        with_slices(lambda x: [((torch.tensor([0]),), (slice(0, 2),))]), X
    ),
    "device must be a torch.device or facts": lambda: dispatch.plan((1, 8, 30, 64), device="cuda"),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_the_true_cause_is_named(sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        MISTAKES[sentence]()


def test_arguments_that_need_a_name_are_listed():
    with pytest.raises(TypeError, match=r"q, k, v, multiplicity may stand without a name, all else has one: offsets="):
        fs.spherical_attention(Q, Q, Q, None, None)


def test_a_layer_without_q_names_none(monkeypatch):
    monkeypatch.setattr(dispatch, "device_facts", lambda device: dispatch.Device("cpu"))
    with pytest.raises(fs.BackendUnavailable, match="CUDA devices, and the tensors are on cpu"):
        fs.distribution_cross_entropy(H, W, H, W, backend="triton")


def test_tables_that_do_not_fit_name_what_does():
    with pytest.raises(MemoryError, match=r"1000000000 targets x 1000000000 regulators do not fit .* use top_edges"):
        fs.EdgeSums(10**9, 10**9)


def test_a_mistake_inside_of_a_function_stays_its_own():
    with pytest.raises(TypeError, match="unsupported operand"):
        fs.fold(monoid(lift=lambda items, _: (items[0] + None,)), (X,))


def test_gradients_that_broadcast_are_taken():
    x = X.clone().requires_grad_()
    own = monoid(
        local_gradient=lambda c, i, g: g,
        proj_fold=lambda s, items: (items[0].sum(0),),
        proj_fold_bwd=lambda s, items, total, g: ((), (g[0].expand_as(items[0]),)),
    )
    fs.monoid_reduce(own, (), (x,)).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


def test_the_texts_of_a_choice_are_those_of_its_type():
    choices = {
        "Method": dispatch.Method,
        "Backend": dispatch.Backend,
        "FoldBackend": dispatch.FoldBackend,
        "Reduction": Reduction,
        "Normaliser": Normaliser,
        "Activation": Activation,
        "Over": Over,
        "By": By,
    }
    listed = {name: tuple(re.split(", | or ", texts)) for name, texts in OPTIONS.items()}
    order = listed.pop("Literal['auto'] | Order")
    assert listed == {name: get_args(kind) for name, kind in choices.items()}
    assert order == ("auto", *get_args(Order))
