"""What an intervention does that nobody made is learned from those that were made."""

from __future__ import annotations

from dataclasses import replace

import anndata
import numpy as np
import pandas as pd
import pytest

import grn
from grn.cells.load import load_cells
from grn.cells.readers.registry import MEMORY
from grn.cells.simulated.cells import simulate
from grn.config.files import change_config
from grn.config.schema import Simulation
from grn.evidence.caused import NORMAL, caused_effects
from grn.evidence.states import states_of
from grn.features.perturb.perturbed import KINDS
from grn.features.perturb.unmade import Unmade, at_one_total

GENES, REGULATORS, LEVEL = 60, 12, 20.0


def screen_of(generator: np.random.Generator, effect: np.ndarray, along: np.ndarray):
    """Cells of which each of the first regulators was cut in some, with the given effects in log
    counts. effect [T, N]; along [REGULATORS, N]: how genes go with regulators in all cells."""
    count = 150
    which = np.repeat(np.arange(len(effect) + 1), count)  # 0: controls
    own = generator.normal(0, 0.5, (len(which), REGULATORS))
    values = np.log(LEVEL) + own @ along + 0.1 * generator.normal(0, 1, (len(which), GENES))
    values[:, :REGULATORS] += own
    for number, each in enumerate(effect):
        values[which == number + 1] += each
    adata = anndata.AnnData(generator.poisson(np.exp(values)).astype(np.float32))
    adata.var_names = [f"R{n}" for n in range(REGULATORS)] + [
        f"G{n}" for n in range(GENES - REGULATORS)
    ]
    adata.obs["cut"] = pd.Categorical([f"R{n - 1}" if n else "control" for n in which])
    return adata


def learned(adata: anndata.AnnData) -> tuple[Unmade, list[str]]:
    fields = {"data.path": MEMORY, "data.genes": "all", "data.intervention_key": "cut"}
    config = change_config(None, fields)
    cells, _ = load_cells(config.data, seed=0, adata=adata)
    states = states_of(cells, 0)
    done = cells.interventions
    assert done is not None
    caused = caused_effects(cells, states)
    return Unmade(at_one_total(cells), states.membership, done, caused), list(cells.vocabulary)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.fixture
def along():
    """Each regulator goes with four genes of its own."""
    table = np.zeros((REGULATORS, GENES))
    for number in range(REGULATORS):
        table[number, REGULATORS + 4 * number : REGULATORS + 4 * number + 4] = [0.6, -0.6, 0.4, 0.5]
    return table


def test_where_effects_are_those_of_associations_the_association_is_the_answer(along):
    """Of a regulator that nobody cut."""
    found, names = learned(screen_of(np.random.default_rng(0), -along[:6], along))
    weights = found._weights()
    assert weights[0] > 4 * weights[1:].max()
    effect = found.effect(names.index("R9"))[:GENES]
    assert cosine(effect, -along[9]) > 0.9
    assert np.sqrt(np.square(effect).mean()) > 0.1


def test_what_all_interventions_share_is_expected_of_the_next(along):
    """Cutting any regulator moves the same genes, which do not go with regulators in the cells."""
    generator = np.random.default_rng(1)
    shared = np.where(np.arange(GENES) >= 50, 0.4 * np.sign(generator.normal(0, 1, GENES)), 0.0)
    found, names = learned(screen_of(generator, np.tile(shared, (6, 1)), along))
    weights = found._weights()
    assert weights[1] > 4 * weights[0]
    assert cosine(found.effect(names.index("R9"))[:GENES], shared) > 0.9


def test_without_interventions_that_tell_anything_the_association_decides_the_direction(along):
    found, names = learned(screen_of(np.random.default_rng(2), np.zeros((6, GENES)), along))
    effect = found.effect(names.index("R9"))[:GENES]
    quarter = np.argsort(-np.abs(effect))[:4]
    assert set(quarter) == set(np.flatnonzero(along[9]))
    assert (np.sign(effect) == -np.sign(along[9]))[quarter].all()
    assert np.abs(effect).max() < 0.2, "interventions did nothing, so that one more does little"


def test_effects_that_were_measured_change_nothing_of_their_own_prediction():
    """The weights, the scale and the terms of an intervention that is left out."""
    adata = simulate(
        Simulation(cells=1500, genes=50, regulators=10, cell_types=1, interventions=0.6, seed=3)
    )
    adata.obs["cut"] = adata.obs["intervention"]
    found, _ = learned(adata)
    number = next(iter(found._left_out))
    effect = found.caused.effect.copy()
    effect[:, number] = np.random.default_rng(0).normal(0, 1, len(effect))
    other = Unmade(
        found.multiplicity, found.membership, found.done, replace(found.caused, effect=effect)
    )
    own, same = found._left_out[number], other._left_out[number]
    np.testing.assert_allclose(own.direction, same.direction)
    assert own.size == same.size
    others = [each for each in found._left_out if each != number]
    assert not np.allclose(
        found._left_out[others[0]].direction, other._left_out[others[0]].direction
    )


def test_intervals_hold_on_interventions_that_nobody_made():
    """Means over draws and interventions, each left out with its cells."""
    hit, right = [], []
    for seed in (11, 12, 13):
        size = {"cells": 2000, "genes": 80, "regulators": 20, "cell_types": 1}
        adata = simulate(Simulation(**size, interventions=0.5, seed=seed))
        adata.obs["cut"] = adata.obs["intervention"]
        whole, names = learned(adata)
        for number, name in enumerate(whole.done.names):
            found, same = learned(adata[adata.obs["cut"] != name].copy())
            where = [same.index(gene) for gene in names[:80]]
            effect, sd = found.effect(same.index(name))[where], found.sd[where]
            measured = whole.done.sign * whole.caused.effect[:80, number]
            error = whole.caused.error[:80, number]
            known = np.isfinite(measured)
            within = np.abs(measured - effect) < NORMAL * np.hypot(sd, error)
            hit.append(within[known].mean())
            responds = known & (np.abs(measured) > 4 * error)
            right += list((np.sign(effect) == np.sign(measured))[responds])
    assert 0.92 < np.mean(hit) < 0.99
    assert np.mean(right) > 0.97


def test_cells_that_regulators_do_not_count_in_are_counted_to_one_total():
    adata = simulate(Simulation(cells=300, genes=40, regulators=8, cell_types=1, interventions=0.5))
    fields = {"data.path": MEMORY, "data.genes": "all", "data.intervention_key": "intervention"}

    def cells(regulators):
        config = change_config(None, fields | {"data.regulators": regulators})
        return load_cells(config.data, seed=0, adata=adata)[0]

    every, some = cells("all"), cells([f"R{number + 1}" for number in range(8)])
    assert at_one_total(every) is every.multiplicity
    assert not some.measures_depth[:8].any()
    found = np.expm1(at_one_total(some)[:, :40].toarray())
    np.testing.assert_allclose(found.sum(1), found.sum(1)[0], rtol=1e-4)
    keys = some.interventions.key
    assert (at_one_total(some)[:, keys] != some.multiplicity[:, keys]).nnz == 0


@pytest.fixture(scope="module")
def run():
    size = {"cells": 1200, "genes": 40, "regulators": 10, "cell_types": 2, "seed": 4}
    fields = {f"data.simulated.{name}": value for name, value in size.items()}
    fields |= {"data.simulated.interventions": 0.5, "data.intervention_key": "intervention"}
    fields |= {"model.members": 2, "model.width": 16, "network.false_discovery": False}
    return grn.train("simulated:", label="cell_type", max_steps=20, set=fields, quiet=True)


def test_other_kinds_move_genes_the_other_way_and_a_screen_asks_the_same(run):
    done = set(run.edges.dropna(subset=["caused"])["source"])
    gene = next(f"R{n + 1}" for n in range(10) if f"R{n + 1}" not in done)
    out, half, over = (grn.perturb(run, **{kind: gene}).var for kind in KINDS)
    rest = ~out["grn_perturbed"].to_numpy(bool)
    effect = out["grn_effect"].to_numpy()[rest]
    assert np.isfinite(out["grn_low"]).all() and np.abs(effect).max() > 0
    ratio = half["grn_effect"].to_numpy()[rest] @ effect / (effect @ effect)
    assert 0 < ratio < 1
    assert over["grn_effect"].to_numpy()[rest] @ effect < 0
    two = grn.perturb(run, knock_out=[gene, sorted(done)[0]]).var["grn_effect"]
    one = grn.perturb(run, knock_out=sorted(done)[0]).var["grn_effect"]
    added = (two - one)[[name for name in two.index if name not in done | {gene}]]
    np.testing.assert_allclose(added, out["grn_effect"][added.index], atol=1e-5)
    table = grn.screen(run, "type 1", "type 2", quiet=True).set_index("gene")
    mine = grn.perturb(run, knock_out=gene, cell_type="type 1").var["grn_effect"].drop(gene)
    assert table.loc[gene, "strongest"] == mine.abs().idxmax()
