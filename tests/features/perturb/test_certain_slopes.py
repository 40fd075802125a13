"""Changes along certain edges: as large as planted, with intervals; without effects of edges, as
the model has them.
"""

from __future__ import annotations

import shutil

import anndata
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import grn
from grn.features.perturb.certain_slopes import CertainSlopes
from grn.features.perturb.mechanism import effects
from grn.features.perturb.perturbed import Subject
from grn.features.run import trained_of

CELLS, GENES, REGULATORS = 800, 40, ["R1", "R2", "R3", "R4"]
FIELDS = {"model.members": 2, "model.width": 16, "data.values": "expression"}
OWN = [f"G{number}" for number in range(20, 25)]  # genes that R1 raises in one type alone


def planted() -> np.ndarray:
    """Slopes in each of two types, [2, N, R]: R1 on ten genes, R2 on ten others, and R1 on five in
    the first type.
    """
    generator = np.random.default_rng(0)
    slopes = np.zeros((2, GENES, 4))
    slopes[:, :10, 0] = 0.3 * generator.choice([-1, 1], 10)
    slopes[:, 10:20, 1] = 0.3 * generator.choice([-1, 1], 10)
    slopes[0, 20:25, 0] = 0.5
    return slopes


@pytest.fixture(scope="module")
def cells():
    """Values that are no counts; the regulators are correlated."""
    generator = np.random.default_rng(1)
    kind = np.arange(CELLS) % 2
    x = generator.normal(size=(CELLS, 4)) + 0.5 * generator.normal(size=(CELLS, 1))
    y = np.einsum("cij,cj->ci", planted()[kind], x) + generator.normal(size=(CELLS, GENES))
    adata = anndata.AnnData(np.column_stack([x + 4, y + 12]).astype(np.float32))
    adata.var_names = [*REGULATORS, *(f"G{number}" for number in range(GENES))]
    adata.obs_names = [f"cell {number}" for number in range(CELLS)]
    adata.obs["type"] = np.array(["a", "b"])[kind]
    return adata


@pytest.fixture(scope="module")
def run(cells):
    return grn.train(cells, label="type", regulators=REGULATORS, max_steps=5, set=FIELDS, seed=2)


@pytest.fixture(scope="module")
def plain(run, tmp_path_factory):
    """The same run with tables that hold no effects, as older versions wrote them."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    shutil.copytree(run.folder, folder)
    for name in ("edges.parquet", "edges_by_type.parquet"):
        table = pq.read_table(folder / name)
        pq.write_table(table.drop_columns(["effect", "effect_se"]), folder / name)
    return grn.load(folder)


@pytest.mark.parametrize("column", [0, 1])
def test_changes_along_certain_edges_are_as_planted_and_the_models_are_smaller(
    run, plain, cells, column
):
    targets, within = slice(10 * column, 10 * column + 10), []
    for number, kind in enumerate("ab"):
        found, shrunk = (
            grn.perturb(each, knock_out=REGULATORS[column], cell_type=kind, data=cells)
            for each in (run, plain)
        )
        table, own = (each.var.iloc[4:][targets] for each in (found, shrunk))
        truth = -planted()[number, targets, column] * float(found.X[:, column].mean())
        assert table[["grn_low", "grn_high"]].notna().all(None), "every planted edge is certain"
        size, of_model = (
            float(each["grn_change"] @ truth / (truth @ truth)) for each in (table, own)
        )
        assert abs(size - 1) < 0.1 and of_model < size - 0.05
        effect = truth / (table["grn_change"] / table["grn_effect"])
        within.append((table["grn_low"] < effect) & (effect < table["grn_high"]))
        half = table["grn_high"] - table["grn_effect"]
        np.testing.assert_allclose(half, 1.959964 * table["grn_sd"], rtol=1e-4)
    assert np.mean(within) >= 0.8


def test_genes_without_a_certain_edge_change_as_the_model_has_it(run, plain, cells):
    found, shrunk = (grn.perturb(each, knock_out="R1", data=cells).var for each in (run, plain))
    free = found["grn_low"].isna()
    assert 10 <= free.sum() <= 30
    columns = ["grn_change", "grn_effect", "grn_sd"]
    np.testing.assert_array_equal(found.loc[free, columns], shrunk.loc[free, columns])
    assert found.loc["R1", ["grn_low", "grn_effect", "grn_high"]].nunique() == 1


def test_a_state_that_differs_has_its_own_effect(run, cells):
    """Over all cells the edges to OWN are certain; in the second type there is nothing."""
    in_a, in_b, in_all = (
        grn.perturb(run, knock_out="R1", cell_type=kind, data=cells).var.loc[OWN]
        for kind in ("a", "b", None)
    )
    assert (in_a["grn_high"] < -1.2).all()
    assert (in_b["grn_low"] > -0.8).all() and (in_b["grn_high"] > 0).all()
    mean = (in_a["grn_change"] + in_b["grn_change"]) / 2
    np.testing.assert_allclose(in_all["grn_change"], mean, rtol=1e-4)
    assert (in_all["grn_sd"] < in_b["grn_sd"]).all(), "of twice as many cells"


def test_two_regulators_at_once_add_up_along_certain_edges(run, cells):
    one, other, both = (
        grn.perturb(run, knock_out=each, data=cells).var.iloc[4:24]
        for each in ("R1", "R2", ["R1", "R2"])
    )
    together = one["grn_change"] + other["grn_change"]
    np.testing.assert_allclose(both["grn_change"], together, atol=0.02)
    assert both["grn_low"].notna().all()


def test_a_run_without_effects_is_perturbed_as_its_model_has_it(plain, cells):
    found = grn.perturb(plain, knock_out="R1", cell_type="a", data=cells)
    assert "grn_low" not in found.var and "holds no effects" in found.uns["grn_perturb"]["sizes"]
    subject = Subject.of_run(plain.folder, plain.config, trained_of(plain), cells)
    measured, basal, states = subject.inputs(subject.rows("a"))
    model = effects(subject.model, measured, basal, states, {0: torch.zeros(len(measured))}, 1)
    expected = model.mean((0, 1)).numpy()
    np.testing.assert_allclose(found.var["grn_effect"][1:], expected[1:], atol=1e-5)


def test_a_model_that_was_changed_in_place_answers_for_itself(run, plain, cells):
    changed = grn.load(run.folder)
    with torch.no_grad():
        changed.module.blocks[1].embedding.key.neg_()
    found, before = (grn.perturb(each, knock_out="R1", data=cells) for each in (changed, plain))
    assert "not of this model" in found.uns["grn_perturb"]["sizes"]
    effect, turned = (each.var["grn_effect"].iloc[4:] for each in (found, before))
    np.testing.assert_allclose(effect, -turned, atol=0.02)


def test_the_error_of_a_mean_is_of_one_edge_or_of_several():
    """Two states of 1 and 3 cells: the error over all cells is one, those of states are
    independent; a gene that one of the states knows nothing of has none.
    """
    error = np.array([[[0.4, 0.4, 0.4]], [[0.4, 0.4, np.nan]]])
    shared = np.array([[[True, False, False]]] * 2)
    moved = np.full((4, 1), -2.0)
    state, slope = np.array([0, 1, 1, 1]), error / 0.4
    slopes = CertainSlopes(slope, error, shared, state, (0,), moved)
    np.testing.assert_allclose(slopes.error_of_mean(), [0.8, 0.8 * np.hypot(0.25, 0.75), np.nan])
    moved[1:] = 0  # what it does there is known: nothing
    np.testing.assert_allclose(slopes.error_of_mean(), [0.2, 0.2, 0.2])
