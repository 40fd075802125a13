"""Perturbations of a run whose cells were intervened on: what was measured comes back, what was not
says so.
"""

import anndata
import numpy as np
import pytest

import grn
from grn.cells.simulated.cells import simulate
from grn.config.schema import Simulation
from grn.runtime.errors import DataError

REGULATORS = [f"R{number + 1}" for number in range(12)]
FIELDS = {
    "model.members": 2,
    "model.width": 16,
    "trainer.max_steps": 150,
    "network.false_discovery": False,
    "data.intervention_key": "intervention",
    "data.depth": "none",
    "data.multiplicity": "log1p",
}


@pytest.fixture(scope="module")
def screen():
    size = {"cells": 1600, "genes": 50, "regulators": 12, "cell_types": 1, "seed": 2}
    cells = simulate(Simulation(**size, interventions=0.35, pairs=0.25))
    made = cells.obs["intervention"].cat.categories
    alone = [name for name in made if name.startswith("R") and "+" not in name]
    return cells[:, cells.var_names != alone[0]].copy(), alone  # the first was not measured


@pytest.fixture(scope="module")
def run(screen):
    return grn.train(screen[0], genes="all", regulators=REGULATORS, seed=0, set=FIELDS)


def measured(cells, value: str) -> np.ndarray:
    """Change of each gene's log1p count, in sds of controls."""
    values, of = np.log1p(cells.X.toarray()), cells.obs["intervention"].to_numpy(str)
    control = values[of == "control"]
    return (values[of == value].mean(0) - control.mean(0)) / control.std(0)


@pytest.mark.parametrize("number", [0, 1])
def test_the_effect_of_an_intervention_comes_back_with_an_interval(run, screen, number):
    """Of one whose gene was not measured, and of one whose gene was."""
    cells, names = screen
    found = grn.perturb(run, knock_out=names[number], data=cells)
    assert list(found.var_names) == list(cells.var_names), "keys of guides are no genes"
    assert set(found.obs["intervention"]) == {"control"}
    assert not len(found.uns["grn_perturb"]["never_intervened"])
    rest = cells.var_names != names[number]
    change = measured(cells, names[number])[rest]
    table = found.var[rest]
    assert np.corrcoef(table["grn_effect"], change)[0, 1] > 0.9
    assert (table["grn_low"] < table["grn_effect"]).all()
    assert (table["grn_effect"] < table["grn_high"]).all()
    assert (table["grn_size"] >= table["grn_effect"].abs()).all(), "the mean of absolute values"


def test_two_at_once_are_predicted_from_each_alone(run, screen):
    cells = screen[0]
    pair = next(name for name in cells.obs["intervention"].cat.categories if "+" in name)
    first, second = pair.split("+")
    found = grn.perturb(run, knock_out=[first, second], data=cells).var["grn_effect"]
    rest = ~cells.var_names.isin([first, second])
    assert np.corrcoef(found[rest], measured(cells, pair)[rest])[0, 1] > 0.85


def test_a_gene_that_nobody_intervened_on_says_so_and_has_wide_intervals(run, screen):
    cells, names = screen
    other = next(name for name in REGULATORS if name not in names)
    never, made = (grn.perturb(run, knock_out=name, data=cells) for name in (other, names[1]))
    assert list(never.uns["grn_perturb"]["never_intervened"]) == [other]
    widths = [(each.var["grn_high"] - each.var["grn_low"]).median() for each in (never, made)]
    assert widths[0] > 2 * widths[1]
    with pytest.raises(DataError):
        grn.perturb(run, knock_down=names[0], data=cells)  # not measured, and knocked out


def test_without_the_key_nothing_is_read_of_what_was_done(screen):
    """Columns of guides alone change no bit of a run."""
    cells, plain = screen[0], screen[0].copy()
    plain.obs = plain.obs[["cell_type"]]
    fields = {**FIELDS, "data.intervention_key": None, "trainer.max_steps": 4}
    one, other = (
        grn.train(each, genes="all", regulators=["R2", "R3"], set=fields) for each in (cells, plain)
    )
    assert one.network.uns["grn"]["model_hash"] == other.network.uns["grn"]["model_hash"]
    assert one.edges.equals(other.edges) and "caused" not in one.edges
    assert "grn_size" not in grn.perturb(other, knock_out="R2", data=plain).var


def test_edges_carry_what_was_caused_beside_the_weight(run, screen):
    cells, names = screen
    edges = run.edges
    assert set(edges.dropna(subset="caused")["source"]) == set(names)
    assert not {*edges["source"], *edges["target"]} - {*REGULATORS, *cells.var_names}
    certain = edges[edges["caused_q"] <= 0.01].merge(cells.uns["truth"], on=["source", "target"])
    assert len(certain) > 5 and (np.sign(certain["weight"]) == certain["sign"]).mean() > 0.9


def test_new_cells_have_no_guides_whatever_genes_they_measured(run, screen):
    """A gene that guides alone stood for in training is not read as that key where new cells
    measured it.
    """
    cells = screen[0][:50].copy()
    more = anndata.AnnData(np.hstack([cells.X.toarray(), np.full((50, 1), 7.0, np.float32)]))
    more.var_names = [*cells.var_names, screen[1][0]]
    found, same = (grn.predict(each, run).obsm["X_grn"] for each in (cells, more))
    np.testing.assert_array_equal(found, same)
