"""Attention over one table of scores is its definition, and attention over bags that share one."""

import pytest
import torch
from seeded import normal as drawn

from flashsign import ShapeMismatch, attention_by_scores, spherical_attention

BAGS, QUERIES, KEYS, WIDTH = 3, 4, 5, 2
close = {"rtol": 1e-12, "atol": 1e-13}


def some(
    leading: tuple[int, ...] = (), own: bool = False, width: int = WIDTH
) -> dict[str, torch.Tensor]:
    """Arguments with leading axes; `own`: with multiplicities for each of them. Some keys are
    absent.
    """
    multiplicity = drawn(*(leading if own else ()), BAGS, KEYS, seed=2).clamp(min=0)
    return {
        "scores": drawn(*leading, QUERIES, KEYS),
        "values": drawn(*leading, KEYS, width, seed=1),
        "multiplicity": multiplicity,
        "centre": drawn(*leading, KEYS, seed=3).abs(),
        "basal": drawn(*leading, QUERIES, seed=4),
    }


@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("leading", "width"), [((), 2), ((2,), 1), ((2, 3), 2)])
def test_it_is_the_definition(leading, width, own, eps):
    """Every axis of every tensor by its name: B bags, N queries, M keys, V values."""
    given = some(leading, own, width)
    found = attention_by_scores(**given, eps=eps)
    scores, values, m, centre, basal = given.values()
    sums = "...bm,...nm,...mv->...bnv"
    message = torch.einsum(sums, m, scores, values)
    message = message - torch.einsum(sums, centre[..., None, :], scores, values)
    square = torch.einsum("...bm,...nm->...bn", m.square(), scores.square())
    norm = (square + basal[..., None, :].square() + eps).sqrt()
    torch.testing.assert_close(found, message / norm[..., None], **close)


@pytest.mark.parametrize("width", [1, WIDTH])
@pytest.mark.parametrize("own", [False, True])
def test_gradients_are_those_of_finite_differences(own, width):
    given = [tensor.requires_grad_() for tensor in some((2,), own, width).values()]
    given[2] = given[2].detach().add(0.1).requires_grad_()
    torch.autograd.gradcheck(
        lambda scores, values, m, centre, basal: attention_by_scores(
            scores, values, m, centre=centre, basal=basal
        ),
        given,
    )


@pytest.mark.parametrize("width", [1, WIDTH])
@pytest.mark.parametrize("own", [False, True])
def test_each_group_of_bags_reads_by_its_own_scores(own, width):
    """Values and gradients; a group without bags has gradients of 0."""
    given = some((2,), own, width)
    tables = given | {
        "scores": drawn(2, 3, QUERIES, KEYS, seed=8),
        "centre": drawn(2, 3, KEYS, seed=9),
    }
    tables["multiplicity"] = tables["multiplicity"] + 0.1
    tables = {name: tensor.requires_grad_() for name, tensor in tables.items()}
    parts = []
    for group, bags in ((0, slice(0, 2)), (2, slice(2, 3))):
        of_group = {name: tables[name][:, group] for name in ("scores", "centre")}
        of_group["multiplicity"] = tables["multiplicity"][..., bags, :]
        parts.append(attention_by_scores(**tables | of_group))
    expected, found = torch.cat(parts, -3), attention_by_scores(**tables, groups=[2, 0, 1])
    torch.testing.assert_close(found, expected, **close)
    weight = drawn(*found.shape, seed=10)
    gradients = [
        torch.autograd.grad((each * weight).sum(), list(tables.values()))
        for each in (found, expected)
    ]
    torch.testing.assert_close(*gradients, **close)
    for wrong in ([2, 1], [2, 1, 1]):
        with pytest.raises(ShapeMismatch):
            attention_by_scores(**tables, groups=wrong)


def test_it_is_spherical_attention_whose_queries_and_keys_are_those_of_every_bag():
    q, k, v = (drawn(2, rows, 6, seed=seed) for rows, seed in ((QUERIES, 5), (KEYS, 6), (KEYS, 7)))
    # no bag is empty
    multiplicity = some()["multiplicity"] + torch.eye(BAGS, KEYS, dtype=torch.float64)
    of_bags = [each.expand(BAGS, -1, -1, -1) for each in (q, k, v)]
    expected = spherical_attention(*of_bags, multiplicity, eps=0)
    found = attention_by_scores(q @ k.mT, v, multiplicity)
    torch.testing.assert_close(found.movedim(0, 1), expected, rtol=1e-9, atol=1e-10)


def test_an_empty_bag_gives_zeros_and_finite_gradients():
    given = some()
    del given["centre"], given["basal"]
    given["multiplicity"][1] = 0
    found = attention_by_scores(**given)
    assert (found[1] == 0).all() and (found[0] != 0).all()
    given["multiplicity"].requires_grad_()
    (gradient,) = torch.autograd.grad(attention_by_scores(**given)[1].sum(), given["multiplicity"])
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["values", "multiplicity", "basal", "centre"])
def test_other_numbers_of_keys_or_queries_are_refused(name):
    given = some()
    given[name] = given[name][..., :-1, :] if name == "values" else given[name][..., :-1]
    with pytest.raises(ShapeMismatch):
        attention_by_scores(**given)
