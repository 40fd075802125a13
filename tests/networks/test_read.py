"""The network that is read from a model, against autograd of the model's own predictions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.autograd.functional import jacobian

from grn.edges.weights import balanced, presence
from grn.evidence.levels import state_levels
from grn.networks import read as module
from grn.networks.read import read_cell, read_network, slopes_of

REGULATORS = np.array([0, 3, 5])
OTHERS = np.setdiff1d(np.arange(12), REGULATORS)
close = {"rtol": 2e-5, "atol": 1e-7}


def inputs_of(model, cells, rows=slice(None)) -> torch.Tensor:
    values = torch.as_tensor(
        cells.multiplicity[rows].toarray()[:, model.regulators.numpy()]
    ).double()
    return model.inputs(values, torch.as_tensor(cells.basal[rows]).double())


def in_state(model, m, state) -> torch.Tensor:
    return torch.eye(len(model.share)).double()[[state] * len(m)]


def by_autograd(model, m, state, share) -> torch.Tensor:
    """[P, N, R]: of each gene in its block, for a unit of what the block reads, the mean over cells
    with shares.
    """
    of, found = in_state(model, m, state), torch.zeros(4, 12, 3).double()
    corrected = model.corrected(m, model.among(m, of) if model.layered else None, of).detach()
    for block, read, genes in (
        (model.blocks[0], m.expand(4, -1, -1), REGULATORS),
        (model.blocks[1], corrected, OTHERS),
    ):
        pick, at = torch.arange(len(genes)), read.clone().requires_grad_()
        mean = (block(at, of, pick) * share[:, None]).sum(1)
        for member in range(4):
            for row, gene in enumerate(genes):
                gradient = torch.autograd.grad(mean[member, row], at, retain_graph=True)[0]
                found[member, gene] = gradient[member].sum(0)[:-1]
    return found


def as_weights(slopes: torch.Tensor, units: torch.Tensor) -> np.ndarray:
    return balanced(slopes.mean(0) * units).numpy()


def sds_in(m, share) -> torch.Tensor:
    return (share @ (m - share @ m).square()).sqrt()[:-1]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("states", [1, 3])
def test_weights_are_derivatives_of_the_blocks_for_a_usual_sd_of_each_regulator(
    make_model, make_cells, states, layers
):
    """Over all cells, and those of each state, where a regulator that hardly varies counts less."""
    model, (cells, known) = make_model(states=states, layers=layers), make_cells(states=states)
    found, m = read_network(model, cells, known, 0), inputs_of(model, cells)
    membership = torch.as_tensor(known.membership).double()
    size = membership.mean(0)
    of_states, sds = [], []
    for state in range(states):
        share = membership[:, state] / membership[:, state].sum()
        of_states.append(by_autograd(model, m, state, share))
        sds.append(sds_in(m, share))
    usual = (size @ torch.stack(sds).square()).sqrt()
    mean = sum(part * each for part, each in zip(size, of_states, strict=True))
    np.testing.assert_allclose(found.weight, as_weights(mean, usual), **close)
    factor = found.weight[1, 0] / float(mean.mean(0)[1, 0] * usual[0])  # of the row of gene 1
    np.testing.assert_allclose(found.sd[1], factor * (mean[:, 1] * usual).std(0), rtol=1e-4)
    assert list(found.of_states) == (list(known.names) if states > 1 else [])
    units = usual * presence(torch.stack(sds), usual)
    for state, own in enumerate(found.of_states.values()):
        np.testing.assert_allclose(own.weight, as_weights(of_states[state], units[state]), **close)
    assert (found.weight[REGULATORS, range(3)] == 0).all() and (found.weight != 0).sum() == 33
    assert found.q is None and found.confidence is None


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("states", [1, 3])
def test_direct_effects_and_those_through_others_add_up_to_what_the_model_predicts(
    make_model, make_cells, states, layers
):
    """Of one cell, where means of products are products of means;
    members read the context in part.
    """
    model, (cells, _) = make_model(states=states, layers=layers), make_cells()
    model.basal.gate.copy_(torch.tensor([1.0, 0.5, 0.25, 0.0]))
    m = inputs_of(model, cells, [4])
    for state in range(states):
        of, found = in_state(model, m, state), slopes_of(model, m, state, torch.ones(1).double())
        # [N, R]
        expected = jacobian(lambda m, of=of: model.expected(m, of).mean(0)[0], m)[:, 0, :-1]
        own, counting = found.direct.mean(0), model.counting if layers > 1 else 0 * model.counting
        own[OTHERS] *= (1 - counting) / model.unit[:-1]
        torch.testing.assert_close(own + found.others, expected, rtol=1e-5, atol=1e-7)
        assert found.others[OTHERS].abs().min() > 1e-6 and (found.others[REGULATORS] == 0).all()


def test_the_total_is_the_direct_and_the_indirect_effect(make_model, make_cells):
    model, (cells, known) = make_model(), make_cells()
    found, m = read_network(model, cells, known, 0), inputs_of(model, cells)
    share = torch.full((9,), 1 / 9).double()
    slopes = slopes_of(model, m, 0, share)
    own, others = slopes.direct.mean(0).detach(), slopes.others.detach()
    own[OTHERS] *= (1 - model.counting) / model.unit[:-1]
    np.testing.assert_allclose(found.total, balanced((own + others) * sds_in(m, share)), **close)
    expected = (others.abs() / (others.abs() + own.abs())).nan_to_num(0)
    np.testing.assert_allclose(found.indirect, expected, rtol=1e-5, atol=1e-6)
    assert (found.indirect[REGULATORS] == 0).all()
    assert found.indirect[OTHERS].min() > 0 and found.indirect.max() < 1


def test_effects_through_the_basal_gene_are_the_mean_change_of_the_context(make_model, make_cells):
    model, (cells, _) = make_model(states=3), make_cells()
    model.basal.gate.copy_(torch.tensor([1.0, 0.5, 0.25, 0.0]))
    m = inputs_of(model, cells)
    found = module.through_context(model, m)

    def mean(m):
        return (model.basal.gate[:, None, None] * model.context(m, torch.arange(9))).mean(1)

    expected = jacobian(mean, m).sum(2)[..., :-1]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_no_flip_of_signs_changes_a_network(make_model, make_cells):
    model, (cells, known) = make_model(states=3), make_cells(states=3)
    before = read_network(model, cells, known, 0)
    for block in model.blocks:
        for parameter in (block.embedding.query, block.embedding.deviation, block.embedding.key):
            parameter.data.neg_()
    after = read_network(model, cells, known, 0)
    for name in ("weight", "sd", "total", "indirect", "between", "cells"):
        assert np.array_equal(getattr(before, name), getattr(after, name)), name
    model.blocks[1].embedding.key.data.neg_()
    turned = read_network(model, cells, known, 0).weight
    np.testing.assert_allclose(turned[OTHERS], -before.weight[OTHERS], **close)
    np.testing.assert_allclose(turned[REGULATORS], before.weight[REGULATORS], **close)


def test_one_member_has_no_sd_and_genes_in_parts_are_those_at_once(
    make_model, make_cells, monkeypatch
):
    model, (cells, known) = make_model(members=1), make_cells()
    assert (read_network(model, cells, known, 0).sd == 0).all()
    model = make_model()
    whole = read_network(model, cells, known, 0)
    monkeypatch.setattr("grn.model.derivatives.NUMBERS", 2 * 16 * 9)
    np.testing.assert_allclose(read_network(model, cells, known, 0).weight, whole.weight, **close)


def test_of_many_cells_a_sample_is_read(make_model, make_cells, monkeypatch):
    monkeypatch.setattr(module, "CELLS", 4)
    model, (cells, known) = make_model(states=3), make_cells(30, states=3, soft=False)
    one, same, other = (read_network(model, cells, known, seed) for seed in (0, 0, 1))
    assert np.array_equal(one.weight, same.weight) and not np.array_equal(one.weight, other.weight)
    assert np.array_equal(one.cells, other.cells), "all cells are counted"


def test_every_gene_may_regulate(make_model, make_cells):
    model, (cells, known) = make_model(regulators=None), make_cells(regulators=None)
    found = read_network(model, cells, known, 0)
    assert found.weight.shape == (12, 12) and np.array_equal(
        found.weight == 0, np.eye(12, dtype=bool)
    )
    assert (found.total == found.weight).all() and (found.indirect == 0).all()


def test_between_and_cells_are_those_of_the_data(make_model, make_cells):
    """Between: the correlation of levels, 0 for a gene whose level is the same everywhere."""
    model, (cells, known) = make_model(states=3), make_cells(states=3, soft=False)
    values = cells.multiplicity.toarray()
    values[:, 7] = 2
    cells = replace(cells, multiplicity=sparse.csr_matrix(values))
    found = read_network(model, cells, known, 0)
    other = np.ones((12, 3), int)
    other[REGULATORS, range(3)] = 0
    for one, rows in ((found, slice(None)), (found.of_states["b"], known.membership[:, 1] > 0)):
        there = (values[rows] > 0).astype(int)
        np.testing.assert_array_equal(one.cells, there.T @ there[:, REGULATORS] * other)
        assert one.cells.dtype == np.int32
    levels = state_levels(values, known.membership)[known.membership.argmax(1)]
    levels[:, 7] = np.random.default_rng(0).random(9)
    between = np.corrcoef(levels, rowvar=False)[:, REGULATORS] * other
    between[7] = 0
    np.testing.assert_allclose(found.between, between, rtol=1e-4, atol=1e-5)
    assert found.of_states["a"].between is found.between
    alone = read_network(make_model(), *make_cells(), 0)
    assert (alone.between == 0).all(), "one state has no levels to compare"


def test_a_cell_has_the_derivatives_at_its_own_multiplicities(make_model, make_cells):
    model, (cells, known) = make_model(states=3), make_cells(states=3)
    found = read_cell(model, cells, known, 6)
    m, total = inputs_of(model, cells, [6]), torch.zeros(12, 3).double()
    for state in range(3):
        of_state = by_autograd(model, m, state, torch.ones(1).double()).mean(0)
        total += float(known.membership[6, state]) * of_state
    there = cells.multiplicity[[6]].toarray()[0, REGULATORS] > 0
    np.testing.assert_allclose(found, balanced(total * torch.as_tensor(there)), **close)
    absent = next(c for c in range(9) if not cells.multiplicity[c, 3])
    assert (read_cell(model, cells, known, absent)[:, 1] == 0).all()
    sure = replace(known, membership=np.eye(3, dtype=np.float32)[[1] * 9])
    assert not np.allclose(read_cell(model, cells, sure, 6), found)
