"""Which cells a network is read from."""

import numpy as np
import pytest

from grn.networks.readouts.sampling import ROUNDS, sample_cells

LABELS = np.array([0] * 30 + [1] * 3 + [-1] * 10 + [4] * 20)


@pytest.mark.parametrize("regulators", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.9])
@pytest.mark.parametrize("cells", [1, 200])
def test_every_regulator_is_masked_and_read_in_some_bag_of_every_type(regulators, fraction, cells):
    masks = {}
    for sample in sample_cells(LABELS, regulators, cells=cells, fraction=fraction, batch=16, seed=0):
        masks.setdefault(sample.cell_type, []).append(sample.masked)
    assert sorted(masks) == [-1, 0, 1, 4]
    for found in map(np.concatenate, masks.values()):
        assert found.shape[1] == regulators
        times = found.sum(0)
        assert (times >= ROUNDS).all()
        assert (times < len(found)).all()


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_a_batch_has_one_type_and_its_own_cells(batch):
    bags = {}
    for sample in sample_cells(LABELS, 5, cells=100, fraction=0.3, batch=batch, seed=0):
        assert len(sample.rows) == len(sample.masked) <= batch
        assert (LABELS[sample.rows] == sample.cell_type).all()
        bags[sample.cell_type] = bags.get(sample.cell_type, 0) + len(sample.rows)
    assert set(bags.values()) == {25}, "an equal number for every type"


def test_small_types_are_read_again_under_other_masks():
    rows, masks = [], []
    for sample in sample_cells(LABELS, 6, cells=120, fraction=0.3, batch=8, seed=0):
        if sample.cell_type == 1:
            rows.append(sample.rows)
            masks.append(sample.masked)
    rows, masks = np.concatenate(rows), np.concatenate(masks)
    assert np.bincount(rows)[30:].tolist() == [10, 10, 10]
    assert len(np.unique(masks[rows == 30], axis=0)) > 1
