"""Which cells form which batch, and which process has them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grn.cells.loading.order import EpochOrder, once_in_order

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
    together = [[row for share in step for row in share] for step in zip(*map(batches, shares), strict=True)]
    assert together == batches(alone)
    assert {len(order) for order in shares} == {len(alone)} == {len(together)}
    seen = [row for step in together for row in step]
    whole = cells // (size * world) * size * world
    assert len(seen) == len(set(seen)) == (whole or cells), "only the incomplete batch is left out"


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
