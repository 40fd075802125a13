"""Dense and packed bags are one thing in two forms; masks depend on their counter alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from grn.cells.cells import Cells
from grn.cells.load import load_cells
from grn.cells.loading.batches import EVALUATE, BagMaker, plain_batches, uniform
from grn.config.schema import DataConfig

ROWS = np.array([4, 0, 17, 9])


@pytest.fixture
def cells(adata, write) -> Cells:
    adata.obs["age"] = np.arange(adata.n_obs) / 2
    return load_cells(DataConfig(path=write(adata), label_key="label"), property_key="age")[0]


def test_dense_bags_hold_the_multiplicities_but_for_the_masked(cells):
    batch = BagMaker(cells, False, 0.3)[0, ROWS]
    before = cells.multiplicity[ROWS].toarray()
    np.testing.assert_array_equal(batch.multiplicity, before)
    np.testing.assert_array_equal(batch.bags.multiplicity, np.where(batch.masked, 0, before))
    assert (batch.masked & (batch.multiplicity > 0)).any()
    assert (batch.masked & (batch.multiplicity == 0)).any(), "absent genes are targets too"
    assert batch.bags.genes.tolist() == list(range(len(cells.vocabulary)))
    assert batch.cells.tolist() == ROWS.tolist()
    assert batch.labels.tolist() == cells.labels[ROWS].tolist()
    assert batch.property.tolist() == [2.0, 0.0, 8.5, 4.5]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("regulators", [None, np.array([1, 4, 5])])
def test_bags_bring_the_regulators_along_masked_ones_too(cells, packed, regulators):
    maker = BagMaker(replace(cells, regulators=regulators), packed, 0.5)
    before = cells.multiplicity[ROWS].toarray()
    found = maker[0, ROWS].bags.regulators
    np.testing.assert_array_equal(found, before if regulators is None else before[:, regulators])


@pytest.mark.parametrize("absent", [0.0, 0.5, 1.0])
def test_packed_bags_list_what_dense_bags_hold(cells, absent):
    rows = np.arange(len(cells))
    dense = BagMaker(cells, False, 0.4)[3, rows]
    packed = BagMaker(cells, True, 0.4, absent)[3, rows]
    dropped = 0
    for cell in rows:
        own = slice(packed.bags.offsets[cell], packed.bags.offsets[cell + 1])
        genes = packed.bags.genes[own]
        np.testing.assert_array_equal(packed.multiplicity[own], dense.multiplicity[cell, genes])
        np.testing.assert_array_equal(packed.bags.multiplicity[own], dense.bags.multiplicity[cell, genes])
        np.testing.assert_array_equal(packed.masked[own], dense.masked[cell, genes])
        left = np.setdiff1d(np.arange(len(cells.vocabulary)), genes)
        assert (dense.multiplicity[cell, left] == 0).all(), "every gene that is present is listed"
        dropped += int(dense.masked[cell, left].sum())
        listed_absent = packed.masked[own] & (packed.multiplicity[own] == 0)
        assert (packed.multiplicity[own] + listed_absent > 0).all(), "listed: present, or absent and masked"
    absent_targets = int((dense.masked & (dense.multiplicity == 0)).sum())
    assert {0.0: dropped == absent_targets, 0.5: 0 < dropped < absent_targets, 1.0: dropped == 0}[absent]
    assert packed.bags.offsets[-1] == len(packed.bags.genes)


def test_a_mask_belongs_to_cell_and_epoch_not_to_the_batch(cells):
    maker = BagMaker(cells, False, 0.3, seed=2)
    one, reverse = maker[1, ROWS], maker[1, ROWS[::-1].copy()]
    np.testing.assert_array_equal(one.masked, reverse.masked.flip(0))
    others = [(maker, 2), (BagMaker(cells, False, 0.3, seed=3), 1)]
    others.append((BagMaker(cells, False, 0.3, seed=2, stream=EVALUATE), 1))
    assert not any(torch.equal(one.masked, other[epoch, ROWS].masked) for other, epoch in others)


@pytest.mark.parametrize("packed", [False, True])
def test_plain_batches_mask_nothing_and_keep_the_order(cells, packed):
    found = list(plain_batches(cells, ROWS, 3, packed=packed))
    assert torch.cat([batch.cells for batch in found]).tolist() == ROWS.tolist()
    total = sum(float(batch.bags.multiplicity.sum()) for batch in found)
    assert total == pytest.approx(float(cells.multiplicity[ROWS].sum()), rel=1e-5)
    assert not any(batch.masked.any() for batch in found)
    assert all(batch.bags.packed == packed for batch in found)
    if packed:
        assert all((batch.bags.multiplicity > 0).all() for batch in found), "only genes that are present"


def test_a_cell_without_genes_is_an_empty_bag(cells):
    empty = cells.multiplicity.copy()
    empty.data[empty.indptr[ROWS[1]] : empty.indptr[ROWS[1] + 1]] = 0
    empty.eliminate_zeros()
    batch = next(plain_batches(replace(cells, multiplicity=empty), ROWS, 4, packed=True))
    assert batch.bags.cells == 4
    assert batch.bags.offsets[1] == batch.bags.offsets[2]


def test_the_numbers_are_uniform_and_independent():
    numbers = uniform(0, 0, 0, np.arange(300), 300)
    assert numbers.min() >= 0 and numbers.max() < 1
    share = np.histogram(numbers, bins=20, range=(0, 1))[0] / numbers.size
    assert np.abs(share - 0.05).max() < 6 * np.sqrt(0.05 * 0.95 / numbers.size)
    # Row and column means have the spread of independent numbers: sd of a mean of 300 is 1 / sqrt(12 * 300).
    for axis in (0, 1):
        assert 0.8 < numbers.mean(axis=axis).std() * np.sqrt(12 * 300) < 1.25


def test_the_numbers_stay_as_they_were_released():
    """Resumed runs depend on them: a change is a change of format."""
    released = [0.47141042966848024, 0.7247520786262142, 0.3030308965844536]
    np.testing.assert_allclose(uniform(0, 0, 0, np.array([0]), 3)[0], released, rtol=0, atol=1e-15)
