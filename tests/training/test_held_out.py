"""Errors on test cells, beside ridge."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from grn.cells.load import load_cells
from grn.messages import silent
from grn.networks import baselines
from grn.networks.baselines import ridge
from grn.regulation.states import states_of
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
    return (cells.multiplicity[split.test].toarray() - train.mean(0)) / np.where(train.std(0) > 1e-3, train.std(0), 1)


def test_the_ridge_error_is_that_of_the_baseline_and_the_model_s_that_of_its_members_mean(known, monkeypatch):
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
    names = list(cells.vocabulary)
    edges = ridge(cells.multiplicity[split.train].toarray(), names, [names[j] for j in model.regulators])
    weights = edges.pivot(index="target", columns="source", values="weight").reindex(names).fillna(0)
    true = standard(cells, split)
    by_ridge = true[:, [names.index(name) for name in weights]] @ weights.to_numpy().T
    test = cells.multiplicity[split.test].toarray()
    expected = {
        "error": np.square((predicted - test) / model.identity.sd.numpy()).mean() / np.square(true).mean(),
        "ridge_error": np.square(by_ridge - true).mean() / np.square(true).mean(),
    }
    for cells_together, genes_together in ((held_out.CELLS, baselines.TOGETHER), (3, 5)):
        monkeypatch.setattr(held_out, "CELLS", cells_together)
        monkeypatch.setattr(baselines, "TOGETHER", genes_together)
        assert held_out_errors(model, states, cells, split) == pytest.approx(expected, rel=1e-4)
    monkeypatch.setattr(held_out, "LARGEST_RIDGE", 10)
    assert held_out_errors(model, states, cells, split) == {}


def test_the_error_of_the_means_is_1(known):
    """A fresh model, whose scores are 0, predicts its states' means, and without levels those of all cells."""
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
