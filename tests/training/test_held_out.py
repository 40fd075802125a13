"""Errors on test cells, beside those of ridge and of the means of states."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeCV

from grn.cells.load import load_cells
from grn.evidence.states import states_of
from grn.networks import baselines
from grn.networks.baselines import PENALTIES
from grn.runtime.messages import silent
from grn.training import held_out
from grn.training.building import prepare
from grn.training.held_out import held_out_errors


@pytest.fixture
def known(make_config):
    config = make_config()
    cells, split = load_cells(config.data)
    states = states_of(cells, 0)
    return prepare(config, cells, split, states, silent).model.eval(), states, cells, split


def standard(cells, split) -> np.ndarray:
    """The test cells in sds of the genes over the training cells."""
    train = cells.multiplicity[split.train].toarray().astype(np.float64)
    return (cells.multiplicity[split.test].toarray() - train.mean(0)) / np.where(
        train.std(0) > 1e-3, train.std(0), 1
    )


def written_out(cells, split, share, regulators) -> tuple[np.ndarray, np.ndarray]:
    """Test cells by scikit-learn's regressions of differences within states on regulators and
    depth, none of itself; and by the means of their states alone.
    """
    values = np.column_stack([cells.multiplicity.toarray(), cells.basal]).astype(np.float64)
    train, known = split.train, share[split.train].astype(np.float64)
    means = share.astype(np.float64) @ (known.T @ values[train] / known.sum(0)[:, None])
    rest = values - means
    sd = np.where(rest[train].std(0) > 1e-6, rest[train].std(0), 1)
    rest /= sd
    found = means[split.test, :-1].copy()
    for gene in range(found.shape[1]):
        inputs = [*(each for each in regulators if each != gene), -1]
        fit = RidgeCV(PENALTIES).fit(rest[train][:, inputs], rest[train, gene])
        found[:, gene] += sd[gene] * (rest[split.test][:, inputs] @ fit.coef_)
    return found, means[split.test, :-1]


def test_errors_are_those_of_the_members_mean_and_of_ridge_and_means_within_states(
    known, monkeypatch
):
    model, states, cells, split = known
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.1 * torch.randn_like(tensor))
        bags_m = model.inputs(
            torch.as_tensor(cells.multiplicity[split.test][:, model.regulators.numpy()].toarray()),
            torch.as_tensor(cells.basal[split.test]),
        )
        y = model.expected(bags_m, torch.as_tensor(states.membership[split.test])).mean(0)
    predicted = (model.mean + model.sd * y).numpy()
    by_ridge, of_states = written_out(cells, split, states.membership, model.regulators.numpy())
    test = cells.multiplicity[split.test].toarray()
    usual = np.square(standard(cells, split)).mean()

    def error(found: np.ndarray) -> float:
        return np.square((found - test) / model.identity.sd.numpy()).mean() / usual

    expected = {
        "error": error(predicted),
        "ridge_error": error(by_ridge),
        "means_error": error(of_states),
    }
    assert expected["ridge_error"] != pytest.approx(expected["means_error"], rel=0.01)
    for cells_together, genes_together in ((held_out.CELLS, baselines.TOGETHER), (3, 5)):
        monkeypatch.setattr(held_out, "CELLS", cells_together)
        monkeypatch.setattr(baselines, "TOGETHER", genes_together)
        assert held_out_errors(model, states, cells, split) == pytest.approx(expected, rel=1e-4)
    monkeypatch.setattr(held_out, "LARGEST_RIDGE", 10)
    assert held_out_errors(model, states, cells, split) == {}


def test_the_error_of_the_means_is_1(known):
    """A fresh model, whose scores are 0, predicts its states' means, and without levels those of
    all cells.
    """
    model, states, cells, split = known
    for block in model.blocks:
        block.embedding.query.data.zero_()
        block.embedding.deviation.data.zero_()
        block.level.zero_()
    found = held_out_errors(model, states, cells, split)["error"]
    assert found == pytest.approx(1, rel=1e-3)


def test_found_states_are_not_told_of_test_cells(known):
    """They come from the very genes that are predicted."""
    model, states, cells, split = known
    model.blocks[1].level.normal_()
    told = held_out_errors(model, states, cells, split)["error"]
    asked = held_out_errors(model, replace(states, origin="found"), cells, split)["error"]
    assert asked != told


def test_found_states_are_told_to_no_other_method_either(known):
    """Ridge and means are those of all cells then."""
    model, states, cells, split = known
    found = held_out_errors(model, replace(states, origin="found"), cells, split)
    one = np.ones((len(cells), 1))
    by_ridge, of_all = written_out(cells, split, one, model.regulators.numpy())
    test, spread = cells.multiplicity[split.test].toarray(), model.identity.sd.numpy()
    expected = [np.square((each - test) / spread).mean() for each in (by_ridge, of_all)]
    assert found["means_error"] == pytest.approx(1, rel=1e-5)
    assert found["ridge_error"] == pytest.approx(expected[0] / expected[1], rel=1e-4)
