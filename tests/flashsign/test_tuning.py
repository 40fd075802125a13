"""Which tile a launch takes, on GPUs that are not here."""

import pytest
import torch

from flashsign import tuning

H200, A100, RTX = (132, 232448), (108, 166912), (128, 101376)  # multiprocessors, bytes of shared memory for a program


@pytest.fixture
def gpu(monkeypatch):
    return lambda limits: monkeypatch.setattr(tuning, "device_limits", lambda device: limits)


def chosen(table, rows, width, kept, dtype=torch.float16):
    return tuning.choose_tile(table, torch.empty(1, 8, rows, width, dtype=dtype, device="meta"), width, kept)


def test_long_bags_take_the_tallest_tile_and_short_ones_fill_the_device(gpu):
    gpu(H200)
    tall, short = tuning.FORWARD[2, 128]
    assert chosen(tuning.FORWARD, 8192, 128, kept=1) == tall
    assert chosen(tuning.FORWARD, 2048, 128, kept=1) == short


@pytest.mark.parametrize(
    ("table", "kept"),
    [(tuning.FORWARD, 1), (tuning.KEY_GRADIENTS, 2), (tuning.QUERY_GRADIENT, 2), (tuning.EDGE_SUMS, 0)],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("limits", [H200, A100, RTX])
def test_no_tile_asks_for_more_shared_memory_than_there_is(gpu, table, kept, dtype, limits):
    gpu(limits)
    for size, width in table:
        if size == dtype.itemsize:
            tile = chosen(table, 100_000, width, kept, dtype)
            assert tile.shared(kept, width * size) <= limits[1]


def test_tiles_of_edge_sums_are_counted_by_their_wider_side():
    """Both of a program's tiles stream by, and `shared` counts twice the other one."""
    assert all(tile.own <= tile.other for tiles in tuning.EDGE_SUMS.values() for tile in tiles)


def test_the_device_of_the_measurements_takes_every_measured_tile():
    for table, kept in ((tuning.FORWARD, 1), (tuning.KEY_GRADIENTS, 2), (tuning.QUERY_GRADIENT, 2)):
        for (size, width), tiles in table.items():
            assert all(tile.shared(kept, width * size) <= H200[1] for tile in tiles)
