"""Effects: as large as those that were planted, where a penalty makes slopes of them that are next
to nothing.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

from grn.cells.cells import Cells
from grn.cells.preprocessing.multiplicity import Counting
from grn.config.schema import ModelConfig
from grn.evidence import effects as module
from grn.evidence.cell_table import CellTable
from grn.evidence.effects import effects_of, expected_step, rows_of_states, scale_of
from grn.evidence.start import start_blocks
from grn.evidence.states import States
from grn.model.reader import ReaderShape
from grn.model.regulation import Model
from grn.training.building import set_units

GENES, REGULATORS, CELLS = 16, 4, 2000
OTHERS = np.arange(REGULATORS, GENES)
FOLD = np.arange(CELLS) // 2 % 5
STATES = States(np.eye(2, dtype=np.float32)[np.arange(CELLS) % 2], ("a", "b"), "labels")
ONE = States(np.ones((CELLS, 1), np.float32), ("all cells",), "one")


def planted(seed: int = 0) -> np.ndarray:
    """Slopes [N, R], a half of them 0, none of which is of a regulator."""
    generator = np.random.default_rng(seed)
    slopes = generator.uniform(0.4, 1, (GENES, REGULATORS)) * generator.choice(
        [-1, 1], (GENES, REGULATORS)
    )
    slopes = slopes * (generator.random(slopes.shape) < 0.5)
    slopes[:REGULATORS] = 0
    return slopes


def cells_of(values: np.ndarray, counting: Counting | None = None) -> Cells:
    generator = np.random.default_rng(5)
    return Cells(
        multiplicity=sparse.csr_matrix(values.astype(np.float32)),
        vocabulary=tuple(f"g{gene}" for gene in range(GENES)),
        regulators=np.arange(REGULATORS),
        labels=np.full(len(values), -1),
        classes=(),
        obs_names=np.arange(len(values)).astype(str),
        basal=generator.uniform(0.9, 1.1, len(values)).astype(np.float32),
        depth=None,
        measures_depth=np.ones(GENES, bool),
        depth_share=np.full(GENES, 1 / GENES),
        target_total=None,
        counts_from="drawn",
        counting=counting,
    )


def linear_cells(slopes: np.ndarray, seed: int = 1) -> Cells:
    """Values that are no counts, of units that differ; the regulators are correlated. slopes: one
    table for all cells, or one for each of two states in turn.
    """
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(CELLS, REGULATORS)) + 0.5 * generator.normal(size=(CELLS, 1))
    of_cells = np.broadcast_to(slopes, (2, GENES, REGULATORS))[np.arange(CELLS) % 2]
    y = np.einsum("cij,cj->ci", of_cells, x) + generator.normal(size=(CELLS, GENES))
    y[:, :REGULATORS] = x
    return cells_of(y + 12)


def started(cells: Cells, states: States, lam: float, layers: int = 1) -> Model:
    """A model whose blocks are at the exact solution with a penalty."""
    members = ReaderShape(2, 0, summary=4, hidden=4, embedding=4, held_out=0)
    config = ModelConfig(layers=layers, members=2, hidden=8)
    own = torch.arange(REGULATORS)
    model = Model(
        config, GENES, regulators=own, states=len(states), identity=members, genes_train=True
    )
    table = CellTable.of(cells, np.arange(len(cells)), states.membership)
    set_units(model, table, FOLD)
    model.penalty.copy_(torch.tensor([[lam, 1.0, 0.0]]).expand(3, -1))
    start_blocks(model, table, FOLD)
    return model.eval()


def slopes_of(model: Model) -> np.ndarray:
    """Of the second block, in the genes' own units, the mean over members and states: [n, R]."""
    pick = torch.arange(GENES - REGULATORS)
    own = model.blocks[1].slopes(model.blocks[1].scores(pick), pick)[..., :-1].mean((0, 1)).detach()
    return (own * model.sd[OTHERS][:, None] / model.sd[:REGULATORS]).numpy()


def shrunk(found: np.ndarray, truth: np.ndarray) -> float:
    """What of the true values is found, by least squares: 1 is all."""
    return float((found * truth).sum() / np.square(truth).sum())


@pytest.mark.parametrize("lam", [0.3, 3.0])
def test_effects_are_close_to_the_truth_and_less_shrunk_than_slopes(lam):
    """lam: over the cells; slopes of a regulator with an sd of 1 lose lam / (1 + lam) of their
    size.
    """
    truth, cells = planted(), linear_cells(planted())
    model = started(cells, ONE, lam)
    found = effects_of(model, cells, ONE, FOLD)
    slopes, effect = slopes_of(model), found.effect[OTHERS]
    assert shrunk(slopes, truth[OTHERS]) < (0.9 if lam < 1 else 0.6)
    assert shrunk(effect, truth[OTHERS]) > 0.95 - 0.05 * (lam > 1)
    assert np.abs(effect - truth[OTHERS]).mean() < 0.4 * np.abs(slopes - truth[OTHERS]).mean()


def test_standard_errors_are_the_spread_of_effects_over_samples():
    truth, found, errors = planted(), [], []
    for seed in range(12):
        cells = linear_cells(truth, seed)
        one = effects_of(started(cells, ONE, 0.1), cells, ONE, FOLD)
        found.append(one.effect[OTHERS])
        errors.append(one.error[OTHERS])
    variance = np.var(found, axis=0, ddof=1).mean()
    assert (variance / np.square(errors).mean()) ** 0.5 == pytest.approx(1, rel=0.15)
    within = np.abs(np.array(found) - truth[OTHERS]) < 2 * np.array(errors)
    assert 0.9 < within.mean() < 0.99


def test_each_state_has_effects_of_its_own():
    """Over all cells they are between those of the states; a gene has none on itself."""
    one, other = planted(0), planted(1)
    cells = linear_cells(np.stack([one, other]))
    found = effects_of(started(cells, STATES, 0.3), cells, STATES, FOLD)

    def off(own, truth) -> float:
        return np.abs(own.effect - truth)[OTHERS].mean()

    first, second = found.of_states
    assert max(off(first, one), off(second, other), off(found, (one + other) / 2)) < 0.1
    assert min(off(first, other), off(second, one)) > 0.3
    for each in (found, first, second):
        assert np.isfinite(each.effect[OTHERS]).all() and (each.error[OTHERS] > 0).all()
        for table in (each.effect, each.error):
            assert np.isnan(table[range(4), range(4)]).all()


@pytest.mark.parametrize("unit", [None, 1.0], ids=["counts", "log1p"])
@pytest.mark.parametrize("layers", [1, 2])
def test_of_counts_they_are_fold_changes_for_a_doubling_without_noise_of_counting(layers, unit):
    """A gene's mean is a power of that of its regulator: the exponent is its log2 fold change for a
    doubling.
    """
    generator = np.random.default_rng(0)
    power = planted() * 0.8
    log = 0.3 * generator.normal(size=(CELLS, REGULATORS))
    mean = np.exp(log @ power.T + np.log(20))
    mean[:, :REGULATORS] = 20 * np.exp(log)  # counting hides a third of their variance
    counts = generator.poisson(mean)
    counting = Counting(None if unit is None else np.full(CELLS, unit))
    cells = cells_of(counts if unit is None else np.log1p(counts), counting)
    found = effects_of(started(cells, ONE, 0.05, layers), cells, ONE, FOLD).effect[OTHERS]
    assert shrunk(found, power[OTHERS]) == pytest.approx(1, abs=0.12)
    assert np.corrcoef(found.ravel(), power[OTHERS].ravel())[0, 1] > 0.97
    blind = effects_of(started(cells, ONE, 0.05), replace(cells, counting=None), ONE, FOLD).effect[
        OTHERS
    ]
    sd = (counts if unit is None else np.log1p(counts)).std(0)
    relative = blind * sd[:REGULATORS] / sd[OTHERS][:, None]
    assert 0 < shrunk(relative, found) < 1


def test_a_fold_change_is_the_slope_again_by_the_scale_of_the_cells_that_were_read(monkeypatch):
    """So that what a perturbation needs is in a run's tables
    (grn/features/perturb/certain_slopes.py); of a sample, too.
    """
    monkeypatch.setattr(module, "CELLS", 300)
    generator = np.random.default_rng(0)
    counts = generator.poisson(generator.uniform(0.5, 9, GENES), (CELLS, GENES))
    cells = cells_of(np.log1p(counts), Counting(np.ones(CELLS)))
    model = started(cells, STATES, 0.1)
    found = effects_of(model, cells, STATES, FOLD).of_states
    monkeypatch.setattr(module, "scale_of", lambda *_: None)
    slopes = effects_of(model, cells, STATES, FOLD).of_states
    for own, plain, rows in zip(found, slopes, rows_of_states(model, STATES), strict=True):
        assert len(rows) == 300
        scale = scale_of(cells, rows)
        for name in ("effect", "error"):
            again = getattr(own, name) * scale[:, None] / scale[:REGULATORS]
            np.testing.assert_allclose(again[OTHERS], getattr(plain, name)[OTHERS], rtol=1e-4)


def test_a_gene_that_is_hardly_counted_has_no_fold_change():
    generator = np.random.default_rng(0)
    counts = generator.poisson(3.0, (CELLS, GENES))
    counts[:, 7] = np.arange(CELLS) == 5
    cells = cells_of(counts, Counting(None))
    found = effects_of(started(cells, ONE, 1.0), cells, ONE, FOLD)
    assert np.isnan(found.effect[7]).all() and np.isfinite(found.effect[8]).all()


def test_cells_are_read_by_members_that_have_not_learned_from_them(monkeypatch):
    """Each cell once; those of folds that no member holds out by the first."""
    cells, read, sums_of = linear_cells(planted()), [], module.sums_of
    model = started(cells, STATES, 0.3)
    model.blocks[1].bias.data += torch.arange(2.0)[:, None]  # by which members are told apart

    def recorded(one, cells, states, rows, state):
        offset = one.blocks[1].bias - model.blocks[1].bias[0]
        read.extend((row, state, round(float(offset.mean()))) for row in rows)
        return sums_of(one, cells, states, rows, state)

    monkeypatch.setattr(module, "sums_of", recorded)
    whole = effects_of(model, cells, STATES, FOLD)
    assert sorted(read) == [(row, row % 2, int(FOLD[row] == 1)) for row in range(CELLS)]
    monkeypatch.setattr(module, "TOGETHER", 100)
    again = effects_of(model, cells, STATES, FOLD)
    np.testing.assert_allclose(again.effect, whole.effect, rtol=1e-3, atol=1e-4)


def test_a_step_of_the_expected_logarithm_is_its_slope():
    """h(mu) = E log(1 + K) of Poisson numbers, summed and differentiated by SciPy's probabilities;
    of large means, that of the logarithm is close.
    """
    from scipy.stats import poisson

    number, mean = np.arange(600), np.array([0.01, 0.5, 3.0, 40.0, 99.0, 101.0, 300.0])
    below, above = (
        poisson.pmf(number, (mean * part)[:, None]) @ np.log1p(number) for part in (0.999, 1.001)
    )
    slope, found = (above - below) / (0.002 * mean), expected_step(mean)
    np.testing.assert_allclose(found[:5], slope[:5], rtol=1e-3)
    np.testing.assert_allclose(found[5:], slope[5:], rtol=6e-3)
