"""Gene parallelism: groups of processes share the genes of each cell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.cells.loading.order import ParallelRank
from grn.errors import ConfigError


@given(replicas=st.integers(1, 4), parts=st.integers(1, 4))
def test_every_process_has_its_own_part_of_a_replica(replicas, parts):
    world = replicas * parts
    processes = [ParallelRank.of(rank, world, parts) for rank in range(world)]
    assert len({(process.replica, process.part) for process in processes}) == world
    for rank, process in enumerate(processes):
        assert (process.replicas, process.parts) == (replicas, parts)
        assert process.ranks() == processes[0].ranks()
        assert process.ranks()[process.replica][process.part] == rank
    assert sorted(rank for group in processes[0].ranks() for rank in group) == list(range(world))


def test_one_process_has_all_cells_and_genes():
    assert ParallelRank.of(0, 1, 1) == ParallelRank() and ParallelRank().ranks() == [[0]]


def test_groups_are_whole():
    with pytest.raises(ConfigError, match=r"trainer\.gene_parallel 2 does not divide the number of processes.*, 3;"):
        ParallelRank.of(0, 3, 2)
