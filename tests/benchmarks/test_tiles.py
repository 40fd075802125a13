"""The check of block sizes covers every table, passes what is right and reports what is wrong."""

import dataclasses

import pytest
import tiles
import torch

from flashsign.tuning import tables

pytest.importorskip("triton")
CPU = not torch.cuda.is_available()


def test_all_shipped_block_sizes_are_cases():
    cases = list(tiles.cases())
    assert {case.kernel for case in cases} == set(tiles.KERNELS)
    for table in (tables.FORWARD, tables.KEY_GRADIENTS, tables.QUERY_GRADIENT):
        assert {width for _, width in table} == {16, 32, 64, 128, 256}
        assert all(row in [case.block_sizes for case in cases] for rows in table.values() for row in rows)


@pytest.mark.skipif(not CPU, reason="the interpreter is for machines without a GPU")
def test_right_results_pass_and_wrong_ones_do_not(monkeypatch):
    case = next(c for c in tiles.cases() if c.kernel == "key_gradients" and c.dtype == torch.float32 and c.width == 16)
    assert tiles.check(case, (7,), "cpu")["within"]
    right = tiles.ours
    monkeypatch.setattr(tiles, "ours", lambda *x: [1.001 * found for found in right(*x)])
    assert not tiles.check(case, (7,), "cpu")["within"]


@pytest.mark.skipif(not CPU, reason="the interpreter is for machines without a GPU")
def test_block_sizes_that_do_not_run_are_a_row_with_the_reason():
    case = next(tiles.cases())
    row = tiles.check(dataclasses.replace(case, block_sizes=dataclasses.replace(case.block_sizes, own=48)), (7,), "cpu")
    assert not row["within"]
    assert row["problem"]
