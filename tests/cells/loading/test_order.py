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


@given(cells=st.integers(300, 2000), size=sizes, world=worlds, start=st.integers(0, 3))
def test_many_cells_are_mixed_in_buffers_of_few_blocks(cells, size, world, start):
    """The same batches with and without a file, and after a resume; what a batch needs is in the
    buffer it names.
    """
    rows = np.arange(7, 7 + cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading_order, "BUFFER", 256)
        orders = [EpochOrder(rows, size, 3, rank, world, buffered=True) for rank in range(world)]
        plain = [batches(EpochOrder(rows, size, 3, rank, world)) for rank in range(world)]
        requests = [list(order) for order in orders]
        orders[0].start = start
        later = list(orders[0])
        orders[0].epoch, orders[0].start = 1, 0
        beyond = next(iter(orders[0]))
    assert plain == [[request.rows.tolist() for request in each] for each in requests]
    assert [request.rows.tolist() for request in later] == plain[0][start:]
    seen = np.concatenate([request.rows for each in requests for request in each])
    assert len(np.unique(seen)) == len(seen) == cells // (size * world) * size * world
    for request, following in zip(requests[0], [*requests[0][1:], beyond], strict=True):
        assert np.isin(request.rows, request.buffer).all() and (np.diff(request.buffer) > 0).all()
        assert len(request.buffer) <= max(256, size)
        assert len(np.unique((request.buffer - 7) // BLOCK)) <= 2 * 256 * world // BLOCK + 2, (
            "few blocks"
        )
        if following.buffer is not request.buffer:
            np.testing.assert_array_equal(following.buffer, request.following)


@given(
    cells=st.integers(5, 600),
    size=sizes,
    world=worlds,
    times=st.integers(1, 3),
    start=st.integers(0, 7),
)
def test_each_batch_is_handed_out_so_many_times_in_a_row(cells, size, world, times, start):
    """Also from the middle on, in later epochs, and with buffers, which are read once."""
    rows = np.arange(cells)
    for buffered in (False, True):
        once, order = (
            EpochOrder(rows, size, 3, world - 1, world, buffered, count) for count in (1, times)
        )
        assert len(order) == times * len(once)
        once.epoch = order.epoch = 1
        every, single = list(order), list(once)
        assert [request.step for request in every] == list(range(len(order), 2 * len(order)))
        for number, request in enumerate(every):
            expected = single[number // times]
            assert (request.rows == expected.rows).all()
            assert (
                np.array_equal(request.buffer, expected.buffer)
                if buffered
                else request.buffer is None
            )
        order.start = start
        later = list(order)
        assert [request.step for request in later] == [request.step for request in every[start:]]
        assert all(
            (one.rows == other.rows).all() for one, other in zip(later, every[start:], strict=True)
        )


def test_each_seed_has_its_own_order():
    first, other = (batches(EpochOrder(np.arange(40), 8, seed)) for seed in (1, 2))
    assert first != other


@given(cells=st.integers(0, 120), size=sizes, world=worlds)
def test_evaluation_reads_every_cell_once(cells, size, world):
    shares = [once_in_order(np.arange(cells), size, rank, world) for rank in range(world)]
    seen = [row for share in shares for batch in batches(share) for row in batch]
    assert sorted(seen) == list(range(cells))
    assert all(len(batch) <= size for share in shares for batch in batches(share))
    assert [len(share) for share in shares] == [len(batches(share)) for share in shares]
    if cells // world >= -(-cells // (size * world)):  # enough cells for a batch each time
        assert len({len(share) for share in shares}) == 1, "equal numbers of batches"
