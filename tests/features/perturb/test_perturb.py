"""Perturbations of a run: laws of the changes, what tables and cells hold, and what is refused."""

from __future__ import annotations

import anndata
import numpy as np
import pytest
import torch

import grn
from grn.features.perturb.mechanism import effects
from grn.features.perturb.perturbed import shift_in_embedding
from grn.runtime.errors import ConfigError, DataError

NAMES = ["R1", "R2", "R3"]


@pytest.fixture(scope="module")
def cells():
    """R1 raises G1 to G10 and lowers G11 to G20, R2 raises R3, which raises G21 to G30. The types
    differ in R1.
    """
    generator = np.random.default_rng(0)
    high = np.repeat([False, True], 150)
    r1 = generator.normal(0, 1, 300) + 1.5 * high
    r2 = generator.normal(0, 1, 300)
    r3 = 0.8 * r2 + 0.6 * generator.normal(0, 1, 300)
    targets = np.repeat([r1, -r1, r3], 10, axis=0).T + 0.5 * generator.normal(0, 1, (300, 30))
    values = np.exp(0.4 * np.column_stack([r1, r2, r3, targets]) + 2.5)
    adata = anndata.AnnData(generator.poisson(values).astype(np.float32))
    adata.var_names = [*NAMES, *(f"G{n + 1}" for n in range(30))]
    adata.obs_names = [f"cell {n}" for n in range(300)]
    adata.obs["type"], adata.obs["half"] = np.where(high, "high", "low"), [*"ab"] * 150
    adata.obsm["X_flat"] = np.column_stack([r1, r2])
    return adata


@pytest.fixture(scope="module")
def run(cells):
    fields = {"model.members": 2, "model.width": 16}
    return grn.train(cells, label="type", regulators=NAMES, max_steps=200, set=fields, seed=2)


def test_the_direction_of_planted_effects_is_right(run, cells):
    """With sizes that are not shrunk, what R1 does to the depth of a cell, and so to the share of
    all other genes, is as little shrunk.
    """
    down, up = (
        grn.perturb(run, data=cells, **{kind: "R1"}).var["grn_effect"].iloc[3:]
        for kind in ("knock_out", "overexpress")
    )
    assert (down[:10] < -0.5).all() and (down[10:20] > 0.5).all()
    assert down[:20].abs().min() > 1.5 * down[20:].abs().max()
    assert (np.sign(up[:20]) == -np.sign(down[:20])).all()


def test_no_gene_loses_more_than_there_is_of_it(run, cells):
    """R1 of this run is far above 0 in every cell, so that its knock-out takes more than all of
    some genes.
    """
    found = grn.perturb(run, knock_out="R1", data=cells)
    change, before = found.var["grn_change"], found.var["grn_before"]
    assert np.isclose(change, -before, rtol=1e-5).sum() > 3
    assert (change >= -before * (1 + 1e-6)).all()
    sized = found.var.dropna(subset="grn_low")
    assert (sized["grn_low"] <= sized["grn_effect"]).all()
    assert (sized["grn_effect"] <= sized["grn_high"]).all()


def test_a_knock_down_lies_between_nothing_and_the_knock_out(run, cells):
    options = {"knock_out": "R1"}, {"knock_down": "R1"}, {"knock_down": "R1", "remaining": 1.0}
    out, half, all_left = (
        grn.perturb(run, data=cells, **each).var["grn_effect"] for each in options
    )
    # Counts are log1p of counts, so that float32 leaves a little where the count is divided by one.
    assert np.abs(all_left).max() < 1e-3
    assert (half / out)[out.abs() > 0.5].between(0.02, 0.98).all()


def test_a_second_step_reaches_the_targets_of_a_target(run, cells):
    one, two = (
        grn.perturb(run, knock_out="R2", steps=steps, data=cells).var["grn_effect"]
        for steps in (1, 2)
    )
    assert one["R3"] < -0.3 and two["G21":].mean() < one["G21":].mean() - 0.1


def test_tables_layers_and_shifts_agree(run, cells):
    chosen = {"cell_type": "high", "where": {"half": "a"}, "basis": "X_flat"}
    found = grn.perturb(run, knock_out=["R1"], data=cells, **chosen)
    assert found.n_obs == 75 and set(found.obs["half"]) == {"a"}
    change = found.layers["grn_change"]
    np.testing.assert_allclose(change.mean(0), found.var["grn_change"], atol=1e-4)
    np.testing.assert_allclose(change[:, 0], -found.X.toarray()[:, 0], atol=1e-5)
    assert found.var.index[found.var["grn_perturbed"]].tolist() == ["R1"]
    assert found.var.loc["R1", "grn_sd"] == 0 and (found.var["grn_sd"] > 0).any()
    assert np.linalg.norm(found.obsm["X_grn_shift"], axis=1).min() > 0
    assert found.obsm["X_flat_shift"][:, 0].mean() < 0, "towards cells with less of R1"
    np.testing.assert_allclose(found.obsm["grn_probabilities_change"].sum(1), 0, atol=1e-5)
    before = grn.predict(cells[found.obs_names].copy(), run)
    assert before.obs["grn_cell_type"].tolist() == found.obs["grn_cell_type_before"].tolist()


def test_a_screen_finds_the_regulator_in_which_two_types_differ(run, cells):
    out, over, away = (
        grn.screen(run, *types, kind=kind, data=cells).set_index("gene")["towards"]
        for *types, kind in (
            ("high", "low", "knock_out"),
            ("low", "high", "overexpress"),
            ("low", "high", "knock_out"),
        )
    )
    for found in (out, over):
        assert found.index[0] == "R1" and found["R1"] > 0.3
    assert out.drop("R1").abs().max() < 0.3 * out["R1"] and away["R1"] < 0


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
    ids=str,
)
def test_what_cannot_be_perturbed_is_refused(run, cells, options):
    with pytest.raises((DataError, ConfigError)):
        grn.perturb(run, data=cells, **options)


def test_a_screen_is_between_two_types(run, cells):
    with pytest.raises(DataError):
        grn.screen(run, "low", "low", data=cells)


@pytest.fixture
def drawn(make_model):
    """A model of three states, and cells that belong to each of them in part."""
    model = make_model(states=3)
    generator = torch.Generator().manual_seed(0)
    measured = 3 * torch.rand(7, 3, generator=generator, dtype=torch.float64)
    states = torch.rand(7, 3, generator=generator, dtype=torch.float64)
    return model, measured, torch.ones(7).double(), states / states.sum(1, keepdim=True)


@pytest.mark.parametrize(("steps", "layers"), [(1, 2), (3, 2), (3, 1)])
def test_nothing_perturbed_is_nothing_changed(drawn, steps, layers):
    model, measured, basal, states = drawn
    model.config = model.config.model_copy(update={"layers": layers})
    found = effects(model, measured, basal, states, {1: measured[:, 1].clone()}, steps)
    assert found.abs().max() < 1e-12


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
    one, two = (effects(model, measured, basal, states, fixed, n, added) for n in (1, 2))
    torch.testing.assert_close(one, added)
    raised = measured[:, 1] + model.sd[model.regulators[1]] * 0.3
    expected = effects(model, measured, basal, states, fixed | {1: raised}, 1)
    torch.testing.assert_close(two[..., model.targets], expected[..., model.targets])


def test_a_cell_that_does_not_move_stays_and_others_go_to_their_neighbours():
    everyone = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    embedding = np.array([[0.0], [5.0], [-5.0], [0.0]])
    shift, rows = np.array([[0.2, 0.0], [0.0, 0.0]]), np.array([0, 3])
    moved = shift_in_embedding(shift, everyone[rows], everyone, embedding, rows)
    assert moved[0, 0] > 1 and moved[1, 0] == 0
