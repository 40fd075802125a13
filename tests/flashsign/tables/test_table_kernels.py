"""The kernels that read tables of scores, against torch in float64: on a GPU where there is one,
else interpreted.
"""

from functools import partial

import pytest
import torch
from kernel_cases import DEVICE, poison  # noqa: F401
from seeded import normal as drawn

from flashsign import ShapeMismatch, attention_and_penalty, attention_by_scores, slope_penalty
from flashsign.tables import shared_scores
from flashsign.tables import slope_penalty as of_penalty
from flashsign.tuning.accuracy import error

pytest.importorskip("triton")
LEAD = (2, 2)  # members and heads
GIVEN = "multiplicity", "centre"  # torch has their gradients, and no kernel
MODULES = shared_scores, of_penalty


def compare(monkeypatch, compute, given: dict[str, torch.Tensor], within: float = 1e-5) -> None:
    """Values and gradients of the kernels in float32 and of torch in float64."""
    found = {}
    for by, dtype in (("triton", torch.float32), ("torch", torch.float64)):
        for module in MODULES:
            monkeypatch.setattr(module, "choose_for_tables", lambda *_, by=by: by)
        tensors = {
            name: each.to(DEVICE, dtype).requires_grad_(name not in GIVEN)
            for name, each in given.items()
        }
        outputs = compute(**tensors)
        leaves = [each for each in tensors.values() if each.requires_grad]
        upstream = [drawn(*output.shape, seed=99).to(output) for output in outputs]
        found[by] = [*outputs, *torch.autograd.grad(outputs, leaves, upstream, allow_unused=True)]
    for number, (one, other) in enumerate(zip(*found.values(), strict=True)):
        assert one is other is None or (
            one.dtype == torch.float32 and error(one, other) < within
        ), (number, *given)


@pytest.mark.parametrize(
    "queries, keys, groups, own",
    [
        (1, 1, [1], "all"),
        (5, 70, [2, 0], "members"),
        (40, 7, [20, 3], ""),
        (40, 7, [20, 3], "all"),
        (33, 530, [5, 1], ""),
    ],
)
def test_attention_by_scores(monkeypatch, queries, keys, groups, own):
    """Multiplicities of all heads and members, of each member, or of each of both."""
    leading = {"": (), "members": (2, 1), "all": LEAD}[own]
    given = {
        "scores": drawn(*LEAD, len(groups), queries, keys, seed=0),
        "values": drawn(*LEAD, keys, 1, seed=1).abs(),
        "multiplicity": drawn(*leading, sum(groups), keys, seed=2).clamp(min=0) + 0.1,
        "centre": drawn(*leading, len(groups), keys, seed=3).abs(),
        "basal": drawn(*LEAD, queries, seed=4) + 1,
    }
    compare(monkeypatch, lambda **tensors: [attention_by_scores(**tensors, groups=groups)], given)


def test_gradients_of_multiplicities_and_centres_are_left_to_torch(monkeypatch):
    shapes = (*LEAD, 1, 2, 3), (*LEAD, 3), (2, 3), (*LEAD, 1, 3)
    scores, amount, m, centre = given = [
        drawn(*shape, seed=at).to(DEVICE, torch.float32).requires_grad_()
        for at, shape in enumerate(shapes)
    ]
    one = scores.new_ones(*LEAD, 2)
    rest = {"gain": one, "basal": one, "square": scores.new_ones(2, 1, 3), "groups": [2]}
    rest["penalty"] = scores.new_ones(1, 3)
    found = []
    for by in ("triton", "torch"):
        for module in MODULES:
            monkeypatch.setattr(module, "choose_for_tables", lambda *_, by=by: by)
        read, shrink = attention_and_penalty(scores, amount, m, centre=centre, **rest)
        found.append(torch.autograd.grad(read.square().sum() + shrink.sum(), given))
    assert all(error(one, other) < 1e-6 for one, other in zip(*found, strict=True))


EACH, ONE = [[0.3, 0.5, 0.4], [0.7, 2.0, 0.0]], [[0.3, 0.01, 1e-4]]


@pytest.mark.parametrize(
    "states, queries, keys, bags, prior, penalty",
    [
        (1, 1, 2, 0, True, EACH),
        (1, 1, 2, 20, False, EACH),
        (2, 8, 128, 0, False, ONE),
        (2, 8, 128, 2, True, ONE),
        (3, 20, 130, 0, True, EACH),
        (3, 20, 130, 20, False, EACH),
    ],
)
def test_slope_penalty(monkeypatch, states, queries, keys, prior, penalty, bags):
    given = {
        "scores": drawn(*LEAD, states, queries, keys, seed=0),
        "amount": drawn(*LEAD, keys, seed=1).abs() + 0.1,
        "gain": drawn(2, queries, 2, seed=2).mT.abs() + 0.1,  # not contiguous
        "basal": drawn(*LEAD, queries, seed=3).abs() + 0.1,
        "square": drawn(2, states, keys, seed=4).abs() + 0.1,
        "penalty": torch.tensor(penalty),
    }
    given |= {"prior": drawn(queries, keys, seed=5).abs() + 0.2} if prior else {}
    if bags:
        given |= {
            "multiplicity": drawn(2, 1, bags, keys, seed=6).abs(),
            "centre": drawn(2, 1, states, keys, seed=7),
        }
    else:  # the penalty by itself, and a query that meets no key, not even a basal score
        given["scores"][..., 1:2, :], given["basal"][..., 1:2] = 0, 0
    groups = [bags - (states - 1), *[1] * (states - 1)]
    compute = (
        partial(attention_and_penalty, groups=groups)
        if bags
        else lambda **given: [slope_penalty(**given)]
    )
    compare(monkeypatch, compute, given, within=1e-4)  # deviations are differences
    for name in given.keys() - {"scores", "penalty"}:
        with pytest.raises(ShapeMismatch):
            compute(**given | {name: given[name][..., 1:]})
