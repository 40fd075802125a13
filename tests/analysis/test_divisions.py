"""Divisions of cells: types keep their sizes, donors keep together, and few divisions are all seen once."""

from __future__ import annotations

import numpy as np

from grn.analysis.compare_conditions import Divisions

GENERATOR = np.random.default_rng(4)


def divisions(sign, donors=None, types=None, most=200):
    sign = np.array(sign, dtype=np.int8)
    types = np.zeros(len(sign), dtype=int) if types is None else np.array(types)
    found = Divisions(sign, types, None if donors is None else np.array(donors))
    return found, list(found.others(most, np.random.default_rng(0)))


def test_cells_are_dealt_out_within_their_types():
    sign, types = GENERATOR.choice([-1, 1], 60), GENERATOR.integers(0, 3, 60)
    found, others = divisions(sign, types=types, most=20)
    assert found.number > 1e300 and len(others) == 20
    for other in others:
        assert (other != sign).any()
        assert all(other[types == t].sum() == sign[types == t].sum() for t in range(3))


def test_donors_with_one_condition_keep_together():
    donors = np.repeat(np.arange(6), 5)
    sign = np.where(donors < 3, -1, 1)
    found, others = divisions(sign, donors)
    assert found.number == 10 and len(others) == 9  # 20 choices of three of six, of which two each are mirror images
    assert len({min(other.tobytes(), (-other).tobytes()) for other in [sign.astype(np.int8), *others]}) == 10
    assert all(len(set(other[donors == d])) == 1 for other in others for d in range(6))
    assert all((other > 0).sum() == 15 for other in others)


def test_without_as_many_donors_in_each_condition_no_division_is_a_mirror_image():
    found, others = divisions([-1, 1, 1, 1], [0, 1, 2, 3])
    assert found.number == 4 and len(others) == 3


def test_donors_with_both_conditions_swap_them():
    donors = np.repeat(np.arange(4), 6)
    sign = np.tile([-1, -1, 1, 1, 1, 1], 4)
    found, others = divisions(sign, donors)
    assert found.number == 8 and len(others) == 7
    for other in others:
        assert all((other[donors == d] == sign[donors == d]).all() or (other[donors == d] == -sign[donors == d]).all()
                   for d in range(4))  # fmt: skip


def test_both_kinds_of_donors():
    donors = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    sign = np.array([-1, 1, -1, 1, -1, -1, 1, 1])
    found, others = divisions(sign, donors)
    assert found.number == 4 and len(others) == 3
    assert all(other[4] == other[5] and other[6] == other[7] and other[4] == -other[6] for other in others)


def test_many_divisions_are_drawn():
    donors = np.repeat(np.arange(20), 2)
    found, others = divisions(np.where(donors < 10, -1, 1), donors, most=30)
    assert found.number == 92378 and len(others) == 30
