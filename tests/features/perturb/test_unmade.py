"""What an intervention does that nobody made is learned from those that were made."""

from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest

import grn
from grn.cells.cells import Cells
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
    counts.

    effect [T, N].
    along [REGULATORS, N]: how genes go with regulators in all cells.
    """
    which = np.repeat(np.arange(len(effect) + 1), 150)  # 0: controls
    own = generator.normal(0, 0.5, (len(which), REGULATORS))
    values = np.log(LEVEL) + own @ along + 0.1 * generator.normal(0, 1, (len(which), GENES))
    values[:, :REGULATORS] += own
    values += np.vstack([np.zeros(GENES), effect])[which]
    adata = anndata.AnnData(generator.poisson(np.exp(values)).astype(np.float32))
    adata.var_names = [f"R{n}" if n < REGULATORS else f"G{n}" for n in range(GENES)]
    adata.obs["cut"] = pd.Categorical([f"R{n - 1}" if n else "control" for n in which])
    return adata


def loaded(adata: anndata.AnnData, **data) -> Cells:
    fields = {"path": MEMORY, "genes": "all", "intervention_key": "cut"} | data
    config = change_config(None, {f"data.{name}": value for name, value in fields.items()})
    return load_cells(config.data, seed=0, adata=adata)[0]


def learned(adata: anndata.AnnData) -> tuple[Unmade, list[str]]:
    cells = loaded(adata)
    states = states_of(cells, 0)
    caused = caused_effects(cells, states)
    found = Unmade(at_one_total(cells), states.membership, cells.interventions, caused)
    return found, list(cells.vocabulary)


def of_r9(adata: anndata.AnnData) -> np.ndarray:
    """What is expected of a regulator that nobody cut, [GENES]."""
    found, names = learned(adata)
    return found.effect(names.index("R9"))[:GENES]


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
    effect = of_r9(screen_of(np.random.default_rng(0), -along[:6], along))
    assert cosine(effect, -along[9]) > 0.9 and np.sqrt(np.square(effect).mean()) > 0.1


def test_what_all_interventions_share_is_expected_of_the_next(along):
    """Cutting any regulator moves the same genes, which do not go with regulators in the cells."""
    generator = np.random.default_rng(1)
    shared = np.where(np.arange(GENES) >= 50, 0.4 * np.sign(generator.normal(0, 1, GENES)), 0.0)
    assert cosine(of_r9(screen_of(generator, np.tile(shared, (6, 1)), along)), shared) > 0.9


def test_where_interventions_did_nothing_the_association_decides_the_direction(along):
    effect = of_r9(screen_of(np.random.default_rng(2), np.zeros((6, GENES)), along))
    strongest = np.argsort(-np.abs(effect))[:4]
    assert set(strongest) == set(np.flatnonzero(along[9]))
    assert (np.sign(effect) == -np.sign(along[9]))[strongest].all()
    assert np.abs(effect).max() < 0.2, "one more does little"


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
            within = np.abs(measured - effect) < NORMAL * np.hypot(sd, error)
            hit.append(within[np.isfinite(measured)].mean())
            responds = np.abs(measured) > 4 * error
            right += list((np.sign(effect) == np.sign(measured))[responds])
    assert 0.92 < np.mean(hit) < 0.99 and np.mean(right) > 0.97


def test_cells_that_regulators_do_not_count_in_are_counted_to_one_total(along):
    adata = screen_of(np.random.default_rng(0), -along[:6], along)
    every, some = loaded(adata), loaded(adata, regulators=[f"R{n}" for n in range(REGULATORS)])
    assert at_one_total(every) is every.multiplicity
    totals = np.expm1(at_one_total(some)[:, :GENES].toarray()).sum(1)
    np.testing.assert_allclose(totals, totals[0], rtol=1e-4)


@pytest.fixture(scope="module")
def run():
    size = {"cells": 1200, "genes": 40, "regulators": 10, "cell_types": 2, "seed": 4}
    fields = {f"data.simulated.{name}": value for name, value in size.items()}
    fields |= {"data.simulated.interventions": 0.5, "data.intervention_key": "intervention"}
    fields |= {"model.members": 2, "model.width": 16, "network.false_discovery": False}
    return grn.train("simulated:", label="cell_type", max_steps=20, set=fields)


def test_other_kinds_move_genes_the_other_way_and_a_screen_asks_the_same(run):
    done = set(run.edges.dropna(subset="caused")["source"])
    gene = next(name for name in (f"R{n + 1}" for n in range(10)) if name not in done)
    out, half, over = (
        grn.perturb(run, **{kind: gene}).var["grn_effect"].drop(gene) for kind in KINDS
    )
    assert 0 < half @ out / (out @ out) < 1 and over @ out < 0
    other = min(done)
    one, two = (
        grn.perturb(run, knock_out=genes).var["grn_effect"] for genes in (other, [gene, other])
    )
    free = [name for name in out.index if name not in done]
    np.testing.assert_allclose((two - one)[free], out[free], atol=1e-5)
    table = grn.screen(run, "type 1", "type 2").set_index("gene")
    mine = grn.perturb(run, knock_out=gene, cell_type="type 1").var["grn_effect"].drop(gene)
    assert table.loc[gene, "strongest"] == mine.abs().idxmax()
