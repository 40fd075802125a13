"""Processes in groups that share the genes of each cell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.data.loading.gene_parallel import Place
from grn.errors import ConfigError


@given(replicas=st.integers(1, 4), parts=st.integers(1, 4))
def test_every_process_has_a_place_of_its_own(replicas, parts):
    world = replicas * parts
    places = [Place.of(rank, world, parts) for rank in range(world)]
    assert len({(place.replica, place.part) for place in places}) == world
    for rank, place in enumerate(places):
        assert (place.replicas, place.parts) == (replicas, parts)
        assert place.ranks() == places[0].ranks()
        assert place.ranks()[place.replica][place.part] == rank
    assert sorted(rank for group in places[0].ranks() for rank in group) == list(range(world))


def test_one_process_has_all_cells_and_genes():
    assert Place.of(0, 1, 1) == Place() and Place().ranks() == [[0]]


def test_groups_are_whole():
    with pytest.raises(ConfigError, match=r"trainer\.gene_parallel 2 does not divide the 3 processes that there are"):
        Place.of(0, 3, 2)
