"""From rows of cells to batches: what is hidden or thinned depends on its counter alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

from grn.cells.cells import Cells
from grn.cells.loading.batches import MOST_HIDDEN, WHOLE, BagMaker, uniform
from grn.cells.loading.tables import Table
from grn.cells.loading.thinning import Thinning, shares
from grn.cells.preprocessing.multiplicity import (
    basal_multiplicity,
    counting_of,
    depth_scale,
    to_multiplicity,
)

ROWS = np.array([4, 0, 17, 9])


@pytest.fixture
def cells(adata, load) -> Cells:
    return load(adata, label_key="label")[0]


def test_batches_hold_the_multiplicities_and_what_is_known_of_each_cell(cells):
    states = np.random.default_rng(0).random((len(cells), 3)).astype(np.float32)
    fold = np.arange(len(cells)) % 5
    batch = BagMaker(cells, states, fold)[0, ROWS]
    np.testing.assert_array_equal(batch.bags.multiplicity, cells.multiplicity[ROWS].toarray())
    np.testing.assert_array_equal(batch.bags.basal, cells.basal[ROWS])
    np.testing.assert_array_equal(batch.bags.states, states[ROWS])
    assert batch.cells.tolist() == ROWS.tolist() and batch.fold.tolist() == fold[ROWS].tolist()
    assert batch.labels.tolist() == cells.labels[ROWS].tolist()
    assert batch.seen is None and batch.kept is None
    plain = BagMaker(cells)[0, ROWS]
    assert plain.bags.states is None and plain.fold.tolist() == [-1] * 4


def test_what_is_hidden_belongs_to_cell_and_epoch_not_to_the_batch(cells):
    thinning = Thinning.of(cells, "log1p_normalised")
    maker = BagMaker(cells, seed=2, trains=True, thinning=thinning)
    one, reverse = maker[1, ROWS], maker[1, ROWS[::-1].copy()]
    assert torch.equal(one.kept, reverse.kept.flip(0)) and torch.equal(
        one.kept, maker[1, ROWS].kept
    )
    assert torch.equal(one.seen.multiplicity, maker[1, ROWS].seen.multiplicity)
    for other, epoch in ((maker, 2), (replace(maker, seed=3), 1)):
        assert not torch.equal(one.kept, other[epoch, ROWS].kept)
    np.testing.assert_array_equal(one.bags.multiplicity, cells.multiplicity[ROWS].toarray())
    assert (one.seen.multiplicity != one.bags.multiplicity).any()


def test_cells_hide_nothing_or_up_to_a_share_of_their_genes(cells):
    rows = np.arange(len(cells))
    maker = BagMaker(cells, trains=True)
    hidden = torch.cat([1 - maker[epoch, rows].kept.double().mean(1) for epoch in range(400)])
    genes = len(cells.vocabulary)
    assert float(hidden.mean()) == pytest.approx((1 - WHOLE) * MOST_HIDDEN / 2, rel=0.05)
    by_chance = (1 - WHOLE) * np.mean((1 - np.linspace(0, MOST_HIDDEN, 10_000)) ** genes)
    assert float((hidden == 0).double().mean()) == pytest.approx(WHOLE + by_chance, abs=0.02)


COUNTED, GENES, TARGET = 40, 200, 500.0


@pytest.mark.parametrize("transform", ["counts", "log1p", "log1p_normalised"])
def test_a_thinned_cell_is_what_its_fewer_counts_give(transform):
    """A share of 1 leaves the first cell as it was; the others keep half of their counts."""
    counts = np.random.default_rng(0).poisson(3.0, (COUNTED, GENES)).astype(np.float32)
    total = counts.sum(1).astype(np.float64)
    scale = depth_scale(total)
    x = to_multiplicity(sparse.csr_matrix(counts), transform, total, TARGET)
    basal, unit = basal_multiplicity(total, scale), counting_of(transform, total, TARGET).unit
    share = torch.full((COUNTED,), 0.5)
    share[0] = 1
    thinning = Thinning(transform == "log1p_normalised", scale[1])
    rows = Table.of(x, basal, unit, "cpu")[np.arange(COUNTED)]
    thin, lower = (each.numpy() for each in thinning.thinned(rows, share, torch.Generator()))

    np.testing.assert_array_equal(thin[0], x[[0]].toarray()[0])
    assert lower[0] == basal[0]
    found = thin
    if transform != "counts":  # what they say the counts are, at half of the cell's total
        half = counting_of(transform, total / 2, TARGET).unit
        found = np.expm1(thin.astype(np.float64)) / half[:, None]
    found, counts = found[1:], counts[1:]
    np.testing.assert_allclose(found, found.round(), atol=1e-3)
    assert (found <= counts + 1e-3).all()
    assert found.sum() / counts.sum() == pytest.approx(0.5, abs=0.02)
    np.testing.assert_allclose(lower[1:], basal_multiplicity(total[1:] / 2, scale), atol=0.01)


def test_shares_are_1_for_some_cells_and_spread_over_the_others():
    found = shares(10_000, 0.3, 0.5, torch.Generator().manual_seed(0))
    others = found[found < 1]
    assert len(others) == pytest.approx(5000, abs=200)
    assert 0.3 <= others.min() < 0.31 and others.max() > 0.98


def test_the_numbers_are_uniform_and_independent():
    numbers = uniform(0, 0, 0, torch.arange(300), 300).numpy()
    assert numbers.min() >= 0 and numbers.max() < 1
    share = np.histogram(numbers, bins=20, range=(0, 1))[0] / numbers.size
    assert np.abs(share - 0.05).max() < 6 * np.sqrt(0.05 * 0.95 / numbers.size)
    # Row and column means have the spread of independent numbers: sd of a mean of 300 is 1 /
    # sqrt(12 * 300).
    for axis in (0, 1):
        assert 0.8 < numbers.mean(axis=axis).std() * np.sqrt(12 * 300) < 1.25


def test_the_numbers_stay_as_they_were_released():
    """Resumed runs depend on them: a change is a change of format."""
    released = np.float32([0.4714103937149048, 0.7247520685195923, 0.3030308485031128])
    np.testing.assert_array_equal(uniform(0, 0, 0, torch.tensor([0]), 3)[0], released)
