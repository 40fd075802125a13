"""Which cells form which batch, and which process has them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.cells.loading import order as loading_order
from grn.cells.loading.order import BLOCK, EpochOrder, once_in_order

worlds = st.integers(1, 5)
sizes = st.integers(1, 9)


def batches(order) -> list[list[int]]:
    return [request.rows.tolist() for request in order]


@given(cells=st.integers(5, 120), size=sizes, world=worlds, epoch=st.integers(0, 3))
def test_processes_share_the_batches_of_one(cells, size, world, epoch):
    rows = np.arange(100, 100 + cells)
    alone = EpochOrder(rows, size * world, seed=3)
    shares = [EpochOrder(rows, size, 3, rank, world) for rank in range(world)]
    for order in (alone, *shares):
        order.epoch = epoch
    together = [
        [row for share in step for row in share] for step in zip(*map(batches, shares), strict=True)
    ]
    assert together == batches(alone)
    assert {len(order) for order in shares} == {len(alone)} == {len(together)}
    seen = [row for step in together for row in step]
    whole = cells // (size * world) * size * world
    assert len(seen) == len(set(seen)) == (whole or cells), "only the incomplete batch is left out"


@given(
    cells=st.integers(300, 2000),
    size=sizes,
    world=worlds,
    times=st.integers(1, 3),
    start=st.integers(0, 7),
)
def test_many_cells_are_mixed_in_buffers_of_few_blocks(cells, size, world, times, start):
    """Batches are the same with and without a file, handed out so many times in a row, and after a
    resume those that are left; what a batch needs is in the buffer that it names.
    """
    rows = np.arange(7, 7 + cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading_order, "BUFFER", 256)
        plain = [batches(EpochOrder(rows, size, 3, rank, world)) for rank in range(world)]
        order = EpochOrder(rows, size, 3, 0, world, buffered=True, times=times)
        requests = list(order)
        order.start = start
        later = list(order)
        order.epoch, order.start = 1, 0
        beyond = next(iter(order))
    own = batches(requests)
    assert own == [batch for batch in plain[0] for _ in range(times)]
    assert [request.step for request in requests] == list(range(len(requests)))
    assert batches(later) == own[start:] and beyond.step == len(requests)
    assert [request.step for request in later] == list(range(start, len(requests)))
    seen = np.concatenate([batch for share in plain for batch in share])
    assert len(np.unique(seen)) == len(seen) == cells // (size * world) * size * world
    for request, following in zip(requests, [*requests[1:], beyond], strict=True):
        assert np.isin(request.rows, request.buffer).all() and (np.diff(request.buffer) > 0).all()
        blocks = np.unique((request.buffer - 7) // BLOCK)
        assert len(request.buffer) <= max(256, size) and len(blocks) <= 2 * 256 * world // BLOCK + 2
        if following.buffer is not request.buffer:
            np.testing.assert_array_equal(following.buffer, request.following)


@given(cells=st.integers(0, 120), size=sizes, world=worlds)
def test_evaluation_reads_every_cell_once(cells, size, world):
    shares = [once_in_order(np.arange(cells), size, rank, world) for rank in range(world)]
    seen = [row for share in shares for batch in batches(share) for row in batch]
    assert sorted(seen) == list(range(cells))
    assert all(len(batch) <= size for share in shares for batch in batches(share))
    assert [len(share) for share in shares] == [len(batches(share)) for share in shares]
    if cells // world >= -(-cells // (size * world)):  # enough cells for a batch each time
        assert len({len(share) for share in shares}) == 1, "equal numbers of batches"
