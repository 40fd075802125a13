"""Perturbations of a run: laws of the changes, what tables and cells hold, and what is refused."""

from __future__ import annotations

import anndata
import numpy as np
import pytest
import torch

import grn
from grn.features.perturb import perturbed as perturb_module
from grn.features.perturb.mechanism import effects
from grn.features.perturb.perturbed import shift_in_embedding
from grn.runtime.errors import ConfigError, DataError

SMALL = {"model.members": 2, "model.width": 16}
REGULATORS, TARGETS = 3, 30


@pytest.fixture(scope="module")
def cells():
    """R1 raises G1 to G10 and lowers G11 to G20, R2 raises R3, which raises G21 to G30. The types
    differ in R1.
    """
    generator = np.random.default_rng(0)
    types = np.repeat(["low", "high"], 150)
    r1 = generator.normal(0, 1, 300) + 1.5 * (types == "high")
    r2 = generator.normal(0, 1, 300)
    r3 = 0.8 * r2 + 0.6 * generator.normal(0, 1, 300)
    targets = np.repeat(np.stack([r1, -r1, r3], 1), 10, axis=1) + 0.5 * generator.normal(
        0, 1, (300, TARGETS)
    )
    values = np.exp(0.4 * np.column_stack([r1, r2, r3, targets]) + 2.5)
    adata = anndata.AnnData(generator.poisson(values).astype(np.float32))
    adata.var_names = ["R1", "R2", "R3", *(f"G{n + 1}" for n in range(TARGETS))]
    adata.obs_names = [f"cell {n}" for n in range(300)]
    adata.obs["type"] = types
    adata.obs["half"] = np.tile(["a", "b"], 150)
    adata.obsm["X_flat"] = np.column_stack([r1, r2])
    return adata


@pytest.fixture(scope="module")
def run(cells):
    return grn.train(
        cells,
        label="type",
        regulators=["R1", "R2", "R3"],
        max_steps=200,
        set=SMALL,
        seed=2,
        quiet=True,
    )


@pytest.mark.parametrize(("shrunk", "times"), [(True, 2.0), (False, 1.5)])
def test_the_direction_of_planted_effects_is_right(run, cells, monkeypatch, shrunk, times):
    """By the model alone, and by sizes that are not shrunk: with these, what R1 does to the depth
    of a cell, and so to the share of all other genes, is as little shrunk.
    """
    if shrunk:
        monkeypatch.setattr(perturb_module, "certain_slopes", lambda *_: (None, ""))
    found = grn.perturb(run, knock_out="R1", data=cells).var
    assert (found.loc[[f"G{n}" for n in range(1, 11)], "grn_effect"] < -0.5).all()
    assert (found.loc[[f"G{n}" for n in range(11, 21)], "grn_effect"] > 0.5).all()
    planted = found.iloc[REGULATORS : REGULATORS + 20]["grn_effect"].abs()
    assert planted.min() > times * found.iloc[REGULATORS + 20 :]["grn_effect"].abs().max()
    raised = grn.perturb(run, overexpress="R1", data=cells).var["grn_effect"]
    down = found["grn_effect"]
    chosen = [f"G{n}" for n in range(1, 21)]
    assert (np.sign(raised[chosen]) == -np.sign(down[chosen])).all()


def test_no_gene_loses_more_than_there_is_of_it(run, cells):
    """R1 of this run is far above 0 in every cell, so that its knock-out takes more than all of
    some genes.
    """
    found = grn.perturb(run, knock_out="R1", data=cells)
    gone = np.isclose(found.var["grn_change"], -found.var["grn_before"], rtol=1e-5)
    assert (
        gone.sum() > 3 and (found.var["grn_change"] >= -found.var["grn_before"] * (1 + 1e-6)).all()
    )
    sized = found.var["grn_low"].notna()
    assert (found.var["grn_low"][sized] <= found.var["grn_effect"][sized]).all()
    assert (found.var["grn_high"][sized] >= found.var["grn_effect"][sized]).all()
    np.testing.assert_allclose(
        found.layers["grn_change"].mean(0), found.var["grn_change"], atol=1e-4
    )


def test_a_knock_down_lies_between_nothing_and_the_knock_out(run, cells):
    out, half, all_left = (
        grn.perturb(run, data=cells, **options).var["grn_effect"]
        for options in (
            {"knock_out": "R1"},
            {"knock_down": "R1"},
            {"knock_down": "R1", "remaining": 1.0},
        )
    )
    # Counts are log1p of counts, so that float32 leaves a little where the count is divided by one.
    assert np.abs(all_left).max() < 1e-3
    strong = out.abs() > 0.5
    assert ((half / out)[strong].between(0.02, 0.98)).all()


def test_a_second_step_reaches_the_targets_of_a_target(run, cells):
    chain = [f"G{n}" for n in range(21, 31)]
    one, two = (
        grn.perturb(run, knock_out="R2", steps=steps, data=cells).var["grn_effect"]
        for steps in (1, 2)
    )
    assert one["R3"] < -0.3
    assert two[chain].mean() < one[chain].mean() - 0.1


def test_tables_layers_and_shifts_agree(run, cells):
    found = grn.perturb(
        run, knock_out=["R1"], cell_type="high", where={"half": "a"}, basis="X_flat", data=cells
    )
    assert found.shape == (75, REGULATORS + TARGETS) and set(found.obs["half"]) == {"a"}
    change = found.layers["grn_change"]
    np.testing.assert_allclose(change.mean(0), found.var["grn_change"], atol=1e-4)
    np.testing.assert_allclose(change[:, 0], -found.X.toarray()[:, 0], atol=1e-5)
    assert found.var["grn_perturbed"].tolist() == [True] + [False] * (REGULATORS + TARGETS - 1)
    others = found.var["grn_sd"].drop(index="R1")
    assert found.var.loc["R1", "grn_sd"] == 0 and (others > 0).any() and others.notna().all()
    assert np.linalg.norm(found.obsm["X_grn_shift"], axis=1).min() > 0
    assert found.obsm["X_flat_shift"].shape == (75, 2)
    assert found.obsm["X_flat_shift"][:, 0].mean() < 0, (
        "cells without R1 do not move towards cells with less of it"
    )
    np.testing.assert_allclose(found.obsm["grn_probabilities_change"].sum(1), 0, atol=1e-5)
    before = grn.predict(cells[found.obs_names].copy(), run, quiet=True)
    assert before.obs["grn_cell_type"].tolist() == found.obs["grn_cell_type_before"].tolist()
    assert found.uns["grn_perturb"]["perturbation"] == "knock-out of R1"


def test_a_screen_finds_the_regulator_in_which_two_types_differ(run, cells):
    found = grn.screen(run, "high", "low", data=cells, quiet=True).set_index("gene")
    assert found.index[0] == "R1" and found.loc["R1", "towards"] > 0.3
    assert found.drop(index="R1")["towards"].abs().max() < 0.3 * found.loc["R1", "towards"]
    back = grn.screen(run, "low", "high", kind="overexpress", data=cells, quiet=True)
    assert back["gene"][0] == "R1" and back["towards"][0] > 0.3
    away = grn.screen(run, "low", "high", data=cells, quiet=True).set_index("gene")
    assert away.loc["R1", "towards"] < 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"knock_out": "R1a"},
        {"knock_out": "G1"},
        {"knock_out": "R1", "cell_type": "lo"},
        {"knock_out": "R1", "where": {"half": "c"}},
        {"knock_out": "R1", "basis": "X_umap"},
    ],
)
def test_what_cannot_be_is_one_sentence(run, cells, options):
    with pytest.raises((DataError, ConfigError)) as refused:
        grn.perturb(run, data=cells, **options)
    assert "\n" not in str(refused.value)
    with pytest.raises(DataError, match="name two that differ"):
        grn.screen(run, "low", "low", data=cells)


@pytest.fixture
def drawn(make_model):
    """A model of three states, and cells that belong to each of them in part."""
    model = make_model(states=3)
    generator = torch.Generator().manual_seed(0)
    measured = 3 * torch.rand(7, 3, generator=generator, dtype=torch.float64)
    states = torch.rand(7, 3, generator=generator, dtype=torch.float64)
    return model, measured, torch.ones(7).double(), states / states.sum(1, keepdim=True)


@pytest.mark.parametrize("steps", [1, 3])
def test_nothing_perturbed_is_nothing_changed(drawn, steps):
    model, measured, basal, states = drawn
    assert (
        effects(model, measured, basal, states, {1: measured[:, 1].clone()}, steps).abs().max()
        < 1e-12
    )
    model.config = model.config.model_copy(update={"layers": 1})
    assert (
        effects(model, measured, basal, states, {1: measured[:, 1].clone()}, steps).abs().max()
        < 1e-12
    )


def test_one_step_is_the_difference_of_two_predictions_with_the_same_context(drawn):
    model, measured, basal, states = drawn
    changed = measured.clone()
    changed[:, 2] = 0
    found = effects(model, measured, basal, states, {2: changed[:, 2]}, 1)
    before, after = (model.inputs(each, basal) for each in (measured, changed))
    y = model.among(before, states)
    torch.testing.assert_close(found[..., model.regulators], model.among(after, states) - y)
    keys, every = model.corrected(before, y, states), torch.arange(len(model.targets))
    moved = keys + (after - before) / model.unit
    expected = model.blocks[1](moved, states, every) - model.blocks[1](keys, states, every)
    torch.testing.assert_close(found[..., model.targets], expected)


def test_a_second_step_reads_regulators_that_the_first_has_changed(drawn):
    model, measured, basal, states = drawn
    fixed = {0: torch.zeros(7).double()}
    first = effects(model, measured, basal, states, fixed, 1)
    of_member = (measured + model.sd[model.regulators] * first[2][:, model.regulators]).clamp(min=0)
    both = {0: fixed[0], 1: of_member[:, 1], 2: of_member[:, 2]}
    expected = effects(model, measured, basal, states, both, 1)[2]
    torch.testing.assert_close(effects(model, measured, basal, states, fixed, 2)[2], expected)


def test_what_is_added_changes_regulators_which_change_their_targets(drawn):
    model, measured, basal, states = drawn
    fixed = {0: measured[:, 0].clone()}  # nothing else changes
    added = torch.zeros(model.config.members, 7, model.genes).double()
    added[..., model.regulators[1]] = 0.3
    one, two, three = (
        effects(model, measured, basal, states, fixed, steps, added) for steps in (1, 2, 3)
    )
    torch.testing.assert_close(one, added)
    raised = measured[:, 1] + model.sd[model.regulators[1]] * 0.3
    expected = effects(model, measured, basal, states, fixed | {1: raised}, 1)
    torch.testing.assert_close(two[..., model.targets], expected[..., model.targets])
    assert (three - two).abs().max() > 1e-6


def test_a_cell_that_does_not_move_stays_and_others_go_to_their_neighbours():
    everyone = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    embedding = np.array([[0.0], [5.0], [-5.0], [0.0]])
    shift = np.array([[0.2, 0.0], [0.0, 0.0]])
    rows = np.array([0, 3])
    moved = shift_in_embedding(shift, everyone[rows], everyone, embedding, rows)
    assert moved[0, 0] > 1 and moved[1, 0] == 0
