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


@pytest.mark.parametrize("origin", ["labels", "found"])
def test_errors_are_those_of_the_members_mean_and_of_ridge_and_means_within_states(
    known, monkeypatch, origin
):
    """Over that of the training cells' means. Nobody is told found states of test cells, which come
    from the very genes that are predicted.
    """
    model, states, cells, split = known
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.1 * torch.randn_like(tensor))
        counted = cells.multiplicity[split.test][:, model.regulators.numpy()].toarray()
        basal = torch.as_tensor(cells.basal[split.test])
        m = model.inputs(torch.as_tensor(counted), basal)
        share = torch.as_tensor(states.membership[split.test])
        share = share if origin == "labels" else model.inferred_states(m)
        predicted = (model.mean + model.sd * model.expected(m, share).mean(0)).numpy()
    of_cells = states.membership if origin == "labels" else np.ones((len(cells), 1))
    by_ridge, of_states = written_out(cells, split, of_cells, model.regulators.numpy())
    values, sd = cells.multiplicity.toarray(), model.identity.sd.numpy()
    means = values[split.train].mean(0)

    def error(found: np.ndarray) -> float:
        return np.square((found - values[split.test]) / sd).mean()

    given = {"error": predicted, "ridge_error": by_ridge, "means_error": of_states}
    expected = {name: error(found) / error(means) for name, found in given.items()}
    assert (expected["means_error"] == pytest.approx(1, rel=1e-5)) == (origin == "found")
    assert expected["ridge_error"] != pytest.approx(expected["means_error"], rel=0.01)
    given = model, replace(states, origin=origin), cells, split
    for cells_together, genes_together in ((held_out.CELLS, baselines.TOGETHER), (3, 5)):
        monkeypatch.setattr(held_out, "CELLS", cells_together)
        monkeypatch.setattr(baselines, "TOGETHER", genes_together)
        assert held_out_errors(*given) == pytest.approx(expected, rel=1e-4)
    monkeypatch.setattr(held_out, "LARGEST_RIDGE", 10)
    assert held_out_errors(*given) == {}
