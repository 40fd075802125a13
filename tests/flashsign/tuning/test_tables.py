"""Which tile a launch takes, on GPUs that are not here."""

import pytest
import torch

from flashsign.tuning import tables as tuning
from flashsign.tuning.tile import TUNED, in_range

H200, A100, RTX = (132, 232448), (108, 166912), (128, 101376)  # multiprocessors, bytes of shared memory for a program


@pytest.fixture
def gpu(monkeypatch):
    return lambda limits: monkeypatch.setattr(tuning, "device_limits", lambda device: limits)


def chosen(name, rows, width, dtype=torch.float16):
    return tuning.choose_tile(name, torch.empty(1, 8, rows, width, dtype=dtype, device="meta"), width)


def test_long_bags_take_the_tallest_tile_and_short_ones_fill_the_device(gpu):
    gpu(H200)
    tall, short = tuning.FORWARD[2, 128]
    assert chosen("forward", 8192, 128) == tall
    assert chosen("forward", 2048, 128) == short


@pytest.mark.parametrize("name", tuning.TABLES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("limits", [H200, A100, RTX])
def test_no_tile_asks_for_more_shared_memory_than_there_is(gpu, name, dtype, limits):
    gpu(limits)
    for size, width in tuning.TABLES[name]:
        if size == dtype.itemsize:
            tile = chosen(name, 100_000, width, dtype)
            assert tile.shared(tuning.KEPT[name], width * size) <= limits[1]


def test_tiles_of_edge_sums_are_counted_by_their_wider_side():
    """Both of a program's tiles stream by, and `shared` counts twice the other one."""
    assert all(tile.own <= tile.other for tiles in tuning.EDGE_SUMS.values() for tile in tiles)


def test_what_can_be_tuned_is_every_table_but_that_of_edges():
    tiles = {name: [tile for row in table.values() for tile in row] for name, table in tuning.TABLES.items()}
    tiles |= {name: list(table.values()) for name, table in tuning.PASSES.items()}
    del tiles["edge_sums"]
    assert {name: {type(tile) for tile in found} for name, found in tiles.items()} == {n: {k} for n, k in TUNED.items()}
    assert [tile for found in tiles.values() for tile in found if not in_range(tile)] == []


def test_the_device_of_the_measurements_takes_every_measured_tile():
    for name, table in tuning.TABLES.items():
        for (size, width), tiles in table.items():
            assert all(tile.shared(tuning.KEPT[name], width * size) <= H200[1] for tile in tiles)
