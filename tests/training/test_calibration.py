"""What held-out cells decide of cell types: importances, confidences, and when members learn from
them, too.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import grn
from grn.cells.load import load_cells
from grn.cells.simulated.cells import simulate
from grn.config.files import change_config
from grn.evidence.states import states_of
from grn.model.objectives import judged_genes, summaries_of
from grn.model.saved import round_as_saved
from grn.runtime.messages import silent
from grn.training.building import data_module, prepare
from grn.training.calibration import (
    judge,
    keep_what_helped,
    kind_importance,
    set_axes,
)
from grn.training.run import train
from grn.training.task import Task


@pytest.fixture
def fit(make_config):
    config = make_config()
    cells, split = load_cells(config.data)
    found = prepare(config, cells, split, states_of(cells, 0), silent)
    with torch.no_grad():
        for parameter in found.model.identity.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return config, found, data_module(config.data, config.trainer, cells, split, found)


def test_the_kind_that_held_out_cells_agree_with_counts_for_more():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (400,), generator=generator)
    knows = (2 * F.one_hot(labels, 3) + torch.randn(400, 3, generator=generator)).log_softmax(-1)
    guesses = torch.randn(400, 3, generator=generator).log_softmax(-1)
    found = kind_importance(torch.stack([knows, guesses]), labels)
    assert found[0] > 5 * found[1]
    nothing = kind_importance(torch.empty(2, 0, 3), torch.empty(0, dtype=torch.int64))
    assert nothing.tolist() == [0.5, 0.5]


def test_cells_are_judged_by_the_members_that_have_not_seen_them(fit):
    """One of each kind: confidence and accuracy are those of their log probabilities, times what
    each kind counts.
    """
    _, found, data = fit
    model, rows, identity = found.model, found.judging, found.model.identity
    accuracy = judge(model, data.validation, rows)
    with torch.no_grad():
        log_odds = identity.of_members(summaries_of(data.validation[0, rows], model))
    assert torch.allclose(identity.importance[0::2], identity.importance[0])
    one, other = identity.importance[:2] * identity.shape.members / 2
    own, cell = torch.as_tensor(found.fold[rows]), torch.arange(len(rows))
    logits = one * log_odds[2 * own, cell] + other * log_odds[2 * own + 1, cell]
    confidence, predicted = logits.softmax(-1).max(-1)
    torch.testing.assert_close(identity.confidence, confidence)
    right = predicted == torch.as_tensor(data.validation.cells.labels[rows])
    assert torch.equal(identity.right, right)
    assert accuracy == pytest.approx(float(right.float().mean()))


def tensors(model) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.blocks.state_dict().items()}


def test_the_gate_is_what_cells_say_that_a_member_has_not_learned_from(fit):
    """In the mode that predicts, whatever mode the model is in."""
    _, found, data = fit
    model = found.model.train()
    start = tensors(model)
    assert keep_what_helped(model, start, data.validation, data.judged[:0]) == []
    assert (model.basal.gate == 1).all(), "nobody has judged"
    # Of one draw or another, the context of some member predicts something, and of none all.
    generator = torch.Generator().manual_seed(6)
    gates = []
    for _ in range(8):
        torch.nn.init.normal_(model.basal.query, generator=generator)
        keep_what_helped(model.train(), start, data.validation, data.judged)
        assert model.training
        whole = judged_genes(data.validation[0, data.judged], model.eval())
        torch.testing.assert_close(model.basal.gate, whole.gate())
        gates.append(whole.gate())
    assert (torch.stack(gates) < 1).all() and (torch.stack(gates) > 0).any()


@pytest.mark.parametrize("spoiled", [0, 1])
def test_a_block_that_training_did_not_improve_keeps_its_start_as_a_file_holds_it(fit, spoiled):
    """The other one, which it improved, stays as it was trained."""
    _, found, data = fit
    model = found.model.eval()
    round_as_saved(model)
    trained = tensors(model)
    gain, bias, other = f"{spoiled}.raw_gain", f"{spoiled}.bias", f"{1 - spoiled}.bias"
    noise = {name: torch.randn_like(trained[name]) for name in (gain, bias, other)}
    start = {gain: trained[gain] + 0.3 * noise[gain], other: trained[other] + noise[other]}
    start = trained | start
    model.blocks.load_state_dict(trained | {bias: trained[bias] + noise[bias]})
    lines = keep_what_helped(model, start, data.validation, data.judged)
    assert lines == [f"Training did not improve block {spoiled + 1}, which keeps its start."]
    kept = tensors(model)
    for name, tensor in kept.items():
        expected = start if name == gain else trained
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-3)
    round_as_saved(model)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in tensors(model).items())


def test_axes_are_the_leading_directions_of_the_training_cells_whatever_their_signs(fit):
    """Of each axis the largest entry is positive."""
    _, found, data = fit
    model, rows = found.model, data.split.train
    set_axes(model, data.validation, rows)
    with torch.no_grad():
        summaries = summaries_of(data.validation[0, rows], model).transpose(0, 1).flatten(1)
    axes, centre = model.identity.axes, summaries.mean(0)
    torch.testing.assert_close(model.identity.centre, centre)
    directions = torch.linalg.svd((summaries - centre).double(), full_matrices=False)[2]
    along = (axes.double().T @ directions[: axes.shape[1]].T).abs()
    torch.testing.assert_close(along, torch.eye(len(along)).double(), rtol=0, atol=1e-2)
    assert (axes.gather(0, axes.abs().argmax(0, keepdim=True)) > 0).all()


def test_members_learn_from_the_cells_that_have_judged_them_from_the_middle_on(
    make_config, tmp_path, monkeypatch
):
    steps, losses, lines = [], Task.losses, []

    def recorded(task, batch, by, opened):
        judged = bool((task.model.identity.confidence > 0).any())
        steps.append((task.global_step, opened, judged))
        return losses(task, batch, by, opened)

    monkeypatch.setattr(Task, "losses", recorded)
    train(make_config(max_steps=8, batch_size=40), tmp_path / "run", say=lines.append)
    assert {0, 7} <= {step for step, *_ in steps}
    assert all(opened == judged == (step >= 4) for step, opened, judged in steps)
    assert sum("cells that members had not seen" in line for line in lines) == 1


def test_types_alone_never_open_the_folds_that_choose_the_step(make_config, fit):
    config, found, _ = fit
    assert Task(found.model, config.objectives, config.trainer, 100).opened == 50
    found.model.genes_train = False
    assert Task(found.model, config.objectives, config.trainer, 100).opened > 100


def test_types_of_unseen_cells_are_found_and_metrics_are_those_of_predict(make_config, tmp_path):
    """Of four types, so that guessing finds a quarter. A fifth of the cells have no label."""
    fields = {"cells": 300, "cell_types": 4, "genes": 30}
    fields = {f"data.simulated.{name}": value for name, value in fields.items()}
    config = make_config(max_steps=60, batch_size=32, learning_rate=0.02)
    config = change_config(config, fields | {"data.test_fraction": 0.4, "model.width": 16})
    given = simulate(config.data.simulated)
    truth = given.obs["cell_type"].to_numpy(str)
    given.obs["cell_type"] = np.where(np.arange(300) % 5 == 0, None, truth)
    result = train(config, tmp_path / "run", adata=given, say=silent)

    found = grn.predict(given, result.folder, copy=True, quiet=True)
    test = load_cells(grn.load(result.folder).config.data, 0, given)[1].test
    right = found.obs["grn_cell_type"].to_numpy(str) == truth
    assert result.metrics["accuracy"] == pytest.approx(right[test[test % 5 != 0]].mean())
    assert right[test].mean() > 0.5
    assert np.allclose(found.obsm["grn_probabilities"].sum(1), 1, atol=1e-5)

    strict = grn.predict(given, result.folder, error=0.3, copy=True, quiet=True)
    threshold = strict.uns["grn"]["threshold"]
    assert threshold == pytest.approx(result.trained.model.identity.threshold(0.3))
    unsure = found.obs["grn_cell_type_confidence"].to_numpy() < threshold
    assert ((strict.obs["grn_cell_type"] == "unassigned").to_numpy() == unsure).all()


def test_labels_of_test_cells_are_never_read(make_config):
    config = make_config()
    cells, split = load_cells(config.data)
    other = cells.labels.copy()
    other[split.test] = 1 - other[split.test]
    found = []
    for labels in (cells.labels, other):
        changed = replace(cells, labels=labels)
        fit = prepare(config, changed, split, states_of(changed, 0), silent)
        data = data_module(config.data, config.trainer, changed, split, fit)
        judge(fit.model, data.validation, fit.judging)
        found.append(fit.model.state_dict())
    assert not np.array_equal(cells.labels, other)
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
