"""What interventions caused: found where it is planted, within strata, and not where nothing was
done.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from grn.cells.interventions import Interventions
from grn.cells.load import load_cells
from grn.cells.simulated.cells import simulate
from grn.config.schema import DataConfig, Simulation
from grn.edges.weights import Network
from grn.evidence.caused import _effects, caused_effects, units_in_words
from grn.networks.intervened import Merge, compared, in_words, order_of

# In a panel of sixty genes a cell's total is biology: divided by it, genes would rise where others
# fall.
FIELDS = {"path": "simulated:", "genes": "all", "intervention_key": "intervention"}
SCREEN = DataConfig(**FIELDS, depth="none", multiplicity="log1p")


@pytest.fixture(scope="module")
def planted():
    size = {"cells": 2000, "genes": 60, "regulators": 20, "cell_types": 1, "seed": 5}
    adata = simulate(Simulation(**size, interventions=0.2))
    return adata, load_cells(SCREEN, adata=adata)[0]


def test_effects_have_the_planted_signs_and_reach_nothing_upstream(planted):
    adata, cells = planted
    found, done, truth = caused_effects(cells), cells.interventions, adata.uns["truth"]
    place = pd.Series(range(len(cells.vocabulary)), cells.vocabulary)
    for number, name in enumerate(done.names):
        below, new = {name}, {name}
        while new:
            new = set(truth[truth["source"].isin(new)]["target"]) - below
            below |= new
        above = [place[gene] for gene in adata.var_names if gene not in below]
        assert (found.q[above, number] <= 0.05).mean() <= 0.05, "what is not downstream"
        direct = truth[truth["source"] == name]
        rows = place[direct["target"]].to_numpy()
        certain = found.q[rows, number] <= 0.05
        assert certain.mean() > 0.6
        right = np.sign(found.effect[rows, number]) == direct["sign"].to_numpy()
        assert right[certain].mean() > 0.9
    assert np.isnan(found.effect[done.place, range(len(done.place))]).all()
    assert np.isnan(found.q[done.key]).all()


def test_controls_called_intervened_have_no_effects(planted):
    """Standardised effects of three interventions that did nothing have about the sd 1: genes go
    together, so that 180 of them say less than as many independent ones.
    """
    _, cells = planted
    controls = np.flatnonzero(cells.interventions.control)
    number = np.random.default_rng(0).integers(0, 4, len(controls))
    nothing = replace(
        cells.interventions.some(controls),
        names=("a", "b", "c"),
        given=sparse.csr_matrix(np.eye(4, dtype=np.float32)[number][:, :3]),
        control=number == 3,
        key=np.zeros(0, int),
        place=np.full(3, -1),
    )
    rows = {name: getattr(cells, name)[controls] for name in ("multiplicity", "obs_names")}
    found = caused_effects(replace(cells, **rows, interventions=nothing, groups=None))
    assert 0.6 < np.nanstd(found.effect / found.error) < 1.25
    assert not (found.q <= 0.05).any()


def test_a_difference_between_replicates_is_no_effect(planted):
    """A gene that one replicate has more of, in which most intervened cells are."""
    _, cells = planted
    done, generator = cells.interventions, np.random.default_rng(1)
    second = np.where(done.control, 0.2, 0.8) > generator.random(len(cells))
    shifted = cells.multiplicity.tolil()
    shifted[:, 50] = (generator.normal(3, 0.5, len(cells)) + 2 * second)[:, None].astype(np.float32)
    moved = replace(cells, multiplicity=shifted.tocsr())
    within = caused_effects(replace(moved, groups=second.astype(np.int64)))
    assert (within.q[50] > 1e-3).all() and (np.abs(within.effect[50]) < 0.4).all()
    assert (caused_effects(moved).q[50] < 1e-6).all()


def test_the_order_of_a_chain_is_read_from_nested_effects(planted):
    found, names = caused_effects(planted[1]), ("first", "second", "third")
    effect = (np.arange(60)[:, None] < [24, 16, 12]).astype(float)
    table = order_of(replace(found, effect=effect, q=1 - effect), names)
    pairs = set(zip(table["source"], table["target"], strict=True))
    assert pairs == {("first", "second"), ("first", "third"), ("second", "third")}
    assert len(order_of(replace(found, effect=effect * [1, -1, 1], q=1 - effect), names)) == 1


def test_two_keys_of_a_gene_become_one_column(planted):
    _, cells = planted
    effects, merge = caused_effects(cells), Merge.of(cells, cells.regulators)
    assert merge.names == cells.vocabulary[:60] and len(merge.regulators) == 60
    zero = np.zeros((60, 60), np.float32)
    network = Network(*[zero] * 6, q=zero + 1)
    found = replace(merge.with_caused(network, effects), observed=zero)
    known = np.isfinite(found.caused)
    assert list(np.flatnonzero(known.any(0))) == sorted(cells.interventions.place)
    assert (found.caused_low <= found.caused)[known].all()
    assert len(compared(found)) == 1
    assert in_words(order_of(effects, cells.interventions.names).head(0)) == []
    certain = replace(found, q=zero, observed=-np.nan_to_num(found.caused))
    assert "100% with the wrong sign" in compared(certain)[1]


def test_what_few_cells_say_is_hardly_believed(planted):
    """An effect counts by its q-value and its error, so that a guide in few cells does not lead the
    network.
    """
    found = caused_effects(planted[1])
    effect, error = np.array([[0.5, 0.5, 0.0]]), np.array([[0.02, 0.5, 0.02]])
    certain = replace(found, effect=effect, error=error, q=np.array([[0.0, 0.3, 0.9]])).certainty[0]
    assert certain[0] > 0.9 and certain[1] < 0.3 and certain[2] < 0.15
    merge, plain = (Merge.of(planted[1], planted[1].regulators, each) for each in (found, None))
    regulators = torch.as_tensor(planted[1].regulators)
    units, one = torch.ones(len(regulators)), torch.ones(len(planted[1].vocabulary))
    weights = torch.ones(len(one), len(units))
    believed, every = (each.map(one, one, units, regulators)(weights) for each in (merge, plain))
    column = merge.pairs[1, 0]
    of_guides = torch.as_tensor(found.certainty[:60, 0]).float()
    torch.testing.assert_close(believed[:, column] - 1, (every[:, column] - 1) * of_guides)


INTERVENTIONS, GENES = 8, 200


def screen(seed, replicates=3, shift=0.2, planted=0, missing=()):
    """Effects in cells whose replicates differ, and differ by `shift` in each intervention, too;
    and what was planted, [genes, interventions].

    missing: pairs of a replicate and an intervention without cells.
    """
    generator = np.random.default_rng(seed)
    truth = np.zeros((GENES, INTERVENTIONS))
    for number in range(INTERVENTIONS):
        genes = generator.choice(GENES, planted, replace=False)
        truth[genes, number] = 0.6 * generator.choice([-1, 1], planted)
    cells, donor, who = [], [], []
    for replicate in range(replicates):
        own = generator.normal(5, 0.5, GENES)
        for number in range(-1, INTERVENTIONS):
            if (replicate, number) in missing:
                continue
            count = 150 if number < 0 else int(generator.integers(10, 90))
            mean = own + generator.normal(0, shift, GENES)
            mean -= truth[:, number] if number >= 0 else 0  # a loss of what raises the gene
            cells.append(mean + generator.normal(size=(count, GENES)))
            donor += [replicate] * count
            who += [number] * count
    which = np.array(who)
    done = Interventions(
        names=tuple("abcdefgh"),
        given=sparse.csr_matrix((which[:, None] == np.arange(INTERVENTIONS)).astype(np.float32)),
        control=which < 0,
        guides=(),
        guide=np.full(len(which), -1),
        kind="knock-out",
        key=np.zeros(0, np.int64),
        place=np.full(INTERVENTIONS, -1),
    )
    values = sparse.csr_matrix(np.concatenate(cells).astype(np.float32))

    def effects(donors):
        return _effects(values, done, np.zeros(len(which), np.int64), donors)

    return effects, np.array(donor), truth


@pytest.mark.parametrize("replicates", [2, 3])
def test_what_replicates_differ_by_is_no_effect(replicates):
    """Intervened cells of a replicate share a shift, which cells as units take for an effect."""
    false, every, within = 0, 0, []
    for seed in range(4):
        effects, donor, _ = screen(seed, replicates)
        found = effects(donor)
        false += int((found.q <= 0.05).sum())
        every += int((effects(0 * donor).q <= 0.05).sum())
        within.append(((found.low <= 0) & (found.high >= 0)).mean())
        assert (found.replicates == replicates).all()
    assert every > 0.1 * 4 * GENES * INTERVENTIONS
    assert false <= 0.001 * 4 * GENES * INTERVENTIONS
    assert 0.93 < np.mean(within) < 0.98 and min(within) > 0.9


def test_effects_that_all_replicates_show_are_found():
    found, planted, right = [], [], []
    for seed in range(4):
        effects, donor, truth = screen(seed, shift=0.1, planted=20)
        every = effects(donor)
        found.append(every.q <= 0.05)
        planted.append(truth != 0)
        right.append(np.sign(every.effect) == np.sign(truth))
    found, planted, right = map(np.stack, (found, planted, right))
    assert (found & planted).sum() > 0.8 * planted.sum()
    assert (found & ~planted).sum() < 0.08 * found.sum()
    assert right[found & planted].all()


def test_replicates_that_do_not_differ_cost_next_to_no_effects():
    effects, donor, truth = screen(0, shift=0, planted=20)
    of_replicates, of_cells = effects(donor), effects(0 * donor)
    found = [((each.q <= 0.05) & (truth != 0)).sum() for each in (of_replicates, of_cells)]
    assert found[0] > 0.9 * found[1]
    assert 0.95 < np.median(of_replicates.error / of_cells.error) < 1.1


def test_an_intervention_in_one_replicate_has_cells_as_units():
    """Cells without a donor are no replicate."""
    few, donor, _ = screen(0, replicates=2)
    assert (few(np.where(donor == 0, -1, donor)).replicates == 0).all()
    effects, donor, _ = screen(0, missing={(0, 2), (1, 2)})
    found = effects(donor)
    assert found.replicates.tolist() == [3, 3, 0, 3, 3, 3, 3, 3]
    assert np.isfinite(found.effect[:, 2]).all() and found.freedom[:, 2].min() > 100
    sentence = units_in_words(found, tuple("abcdefgh"), named=True)
    assert "7 interventions (3 of each)" in sentence and "of 1 (c)" in sentence
    assert "cells are no replicates" in sentence
    alone = effects(0 * donor)
    assert "units of 8 (a, b" in units_in_words(alone, tuple("abcdefgh"), named=True)
    assert "data.group_key" in units_in_words(alone, tuple("abcdefgh"), named=False)


def test_copies_of_cells_are_no_replicates(planted):
    """A cell's exact copies form a group, and every other cell one of its own."""
    adata, _ = planted
    cells, _ = load_cells(SCREEN, adata=adata[np.arange(1000).repeat(2)].copy())
    assert cells.only_copies and len(np.unique(cells.groups)) > 900
    assert np.isfinite(caused_effects(cells).effect).mean() > 0.5
