"""Perturbations of a run whose cells were intervened on: what was measured comes back, what was not
says so.
"""

import anndata
import numpy as np
import pytest

import grn
from grn.cells.simulated.cells import simulate
from grn.config.schema import Simulation
from grn.evidence.caused import Caused
from grn.features.perturb.perturbed import expected_size
from grn.features.perturb.responsiveness import explained_share, response_sd
from grn.runtime.errors import DataError

FIELDS = {
    "model.members": 2,
    "model.width": 16,
    "trainer.max_steps": 150,
    "network.false_discovery": False,
}
FIELDS |= {
    "data.intervention_key": "intervention",
    "data.depth": "none",
    "data.multiplicity": "log1p",
}


@pytest.fixture(scope="module")
def screen():
    size = {"cells": 1600, "genes": 50, "regulators": 12, "cell_types": 1, "seed": 2}
    cells = simulate(Simulation(**size, interventions=0.35, pairs=0.25))
    alone = [
        name
        for name in cells.obs["intervention"].cat.categories
        if name.startswith("R") and "+" not in name
    ]
    return cells[:, cells.var_names != alone[0]].copy(), alone  # the first was not measured


@pytest.fixture(scope="module")
def run(screen):
    regulators = [f"R{number + 1}" for number in range(12)]
    return grn.train(screen[0], genes="all", regulators=regulators, seed=0, set=FIELDS, quiet=True)


def measured(cells, value: str) -> np.ndarray:
    """Change of each gene's log1p count, in sds of controls."""
    values, of = np.log1p(cells.X.toarray()), cells.obs["intervention"].to_numpy(str)
    control = values[of == "control"]
    return (values[of == value].mean(0) - control.mean(0)) / control.std(0)


def test_the_effect_of_an_intervention_that_was_made_comes_back_with_an_interval(run, screen):
    cells, (unmeasured, *others) = screen
    for name in (unmeasured, others[0]):
        found = grn.perturb(run, knock_out=name, data=cells)
        assert list(found.var_names) == list(cells.var_names), "keys of guides are no genes"
        assert set(found.obs["intervention"]) == {"control"}
        assert not len(found.uns["grn_perturb"]["never_intervened"])
        change = measured(cells, name)
        rest = cells.var_names != name
        assert np.corrcoef(found.var["grn_effect"][rest], change[rest])[0, 1] > 0.9
        table = found.var[~found.var["grn_perturbed"].astype(bool)]
        assert (table["grn_low"] < table["grn_effect"]).all() and (
            table["grn_effect"] < table["grn_high"]
        ).all()


def test_two_at_once_are_predicted_from_each_alone(run, screen):
    cells = screen[0]
    pair = next(name for name in cells.obs["intervention"].cat.categories if "+" in name)
    first, second = pair.split("+")
    found = grn.perturb(run, knock_out=[first, second], data=cells).var["grn_effect"]
    rest = ~cells.var_names.isin([first, second])
    assert np.corrcoef(found[rest], measured(cells, pair)[rest])[0, 1] > 0.85


def test_a_gene_that_nobody_intervened_on_says_so_and_has_wide_intervals(run, screen):
    cells, names = screen
    other = next(name for name in ("R1", "R2", "R3", "R4", "R5", "R6", "R7") if name not in names)
    never, made = (grn.perturb(run, knock_out=name, data=cells) for name in (other, names[1]))
    assert list(never.uns["grn_perturb"]["never_intervened"]) == [other]
    widths = [(each.var["grn_high"] - each.var["grn_low"]).median() for each in (never, made)]
    assert widths[0] > 2 * widths[1]
    with pytest.raises(DataError):
        grn.perturb(run, knock_down=names[0], data=cells)  # not measured, and knocked out


def test_without_the_key_nothing_is_read_of_what_was_done(screen):
    """Columns of guides alone change no bit of a run."""
    cells = screen[0].copy()
    plain = cells.copy()
    plain.obs = plain.obs[["cell_type"]]
    fields = {**FIELDS, "data.intervention_key": None, "trainer.max_steps": 4}
    runs = [
        grn.train(each, genes="all", regulators=["R2", "R3"], set=fields, quiet=True)
        for each in (cells, plain)
    ]
    assert runs[0].network.uns["grn"]["model_hash"] == runs[1].network.uns["grn"]["model_hash"]
    assert runs[0].edges.equals(runs[1].edges) and "caused" not in runs[0].edges
    assert "grn_size" not in grn.perturb(runs[1], knock_out="R2", data=plain).var


def test_edges_carry_what_was_caused_beside_the_weight(run, screen):
    cells, names = screen
    edges = run.edges
    caused = edges["caused"].notna()
    assert set(edges.loc[caused, "source"]) == set(names)
    assert (
        not edges["source"].str.startswith("do(").any()
        and not edges["target"].str.startswith("do(").any()
    )
    truth = cells.uns["truth"].set_index(["source", "target"])["sign"]
    certain = edges[edges["caused_q"] <= 0.01].set_index(["source", "target"])
    direct = certain.index.intersection(truth.index)
    assert len(direct) > 5
    assert (np.sign(certain.loc[direct, "weight"]) == truth[direct]).mean() > 0.9


def test_new_cells_have_no_guides_whatever_genes_they_measured(run, screen):
    """A gene that guides alone stood for in training is not read as that key where new cells
    measured it.
    """
    cells = screen[0][:50].copy()
    more = anndata.AnnData(np.hstack([cells.X.toarray(), np.full((50, 1), 7.0, np.float32)]))
    more.var_names = [*cells.var_names, screen[1][0]]
    found, same = (grn.predict(each, run, quiet=True).obsm["X_grn"] for each in (cells, more))
    np.testing.assert_array_equal(found, same)


def test_sizes_are_means_of_absolute_values_and_noise_responds_to_nothing():
    draws = np.random.default_rng(0).normal(0.4, 0.3, 200_000)
    assert expected_size(np.array([0.4]), np.array([0.3]))[0] == pytest.approx(
        np.abs(draws).mean(), rel=0.01
    )
    assert expected_size(np.array([-0.4]), np.array([0.0]))[0] == pytest.approx(0.4)
    from scipy import sparse

    generator = np.random.default_rng(1)
    common = generator.normal(0, 1, (800, 1))
    values = np.hstack(
        [common + 0.5 * generator.normal(0, 1, (800, 5)), generator.normal(0, 1, (800, 5))]
    )
    share = explained_share(sparse.csr_matrix(values))
    assert share[:5].min() > 0.6 > 0.1 > share[5:].max()
    effect = np.array([[0.5, -0.4], *[[0.01, 0.0]] * 9])
    t = response_sd(share, Caused(effect, np.full((10, 2), 0.02), np.zeros((10, 2)), np.ones(10)))
    assert t[0] > t[1:5].max() > 2 * t[5:].max(), (
        "what responded, and what goes with it, may respond again"
    )
