"""The check of tiles: it covers every table, passes what is right and says what is not."""

import dataclasses

import pytest
import tiles
import torch

from flashsign.tuning import tables

pytest.importorskip("triton")
CPU = not torch.cuda.is_available()


def test_every_shipped_tile_is_a_case():
    cases = list(tiles.cases())
    assert {case.kernel for case in cases} == set(tiles.KERNELS)
    for table in (tables.FORWARD, tables.KEY_GRADIENTS, tables.QUERY_GRADIENT):
        assert {width for _, width in table} == {16, 32, 64, 128, 256}
        assert all(tile in [case.block_sizes for case in cases] for found in table.values() for tile in found)


@pytest.mark.skipif(not CPU, reason="the interpreter is for machines without a GPU")
def test_a_right_tile_passes_and_a_wrong_result_does_not(monkeypatch):
    case = next(c for c in tiles.cases() if c.kernel == "key_gradients" and c.dtype == torch.float32 and c.width == 16)
    assert tiles.check(case, (7,), "cpu")["within"]
    right = tiles.ours
    monkeypatch.setattr(tiles, "ours", lambda *x: [1.001 * found for found in right(*x)])
    assert not tiles.check(case, (7,), "cpu")["within"]


@pytest.mark.skipif(not CPU, reason="the interpreter is for machines without a GPU")
def test_a_tile_that_does_not_run_is_a_row_with_the_reason():
    case = next(tiles.cases())
    row = tiles.check(dataclasses.replace(case, block_sizes=dataclasses.replace(case.block_sizes, own=48)), (7,), "cpu")
    assert not row["within"]
    assert row["problem"]
