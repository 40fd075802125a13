"""The search takes block sizes that are faster and right, and its file is read only where it was made."""

import math

import pytest
import torch

from flashsign.autotune import __main__ as tune
from flashsign.autotune import search
from flashsign.autotune.search import Bags, Search, climb
from flashsign.tuning import tables, tile_file
from flashsign.tuning.block_sizes import BlockSizes, Kernel, RowBlockSizes
from flashsign.tuning.choose import choose_block_sizes, choose_row_block_sizes, file_block_sizes

pytest.importorskip("triton")
CPU = torch.device("cpu")
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without a GPU")

START, BETTER = BlockSizes(32, 32, 4, 2), BlockSizes(64, 32, 4, 2)
FORWARD = Kernel("forward", 4, 16)
BAGS = Bags(cells=1, heads=2, key_heads=1, genes=20, keys=9, width=16, dtype=torch.float32)


@pytest.fixture
def fresh(monkeypatch):
    """No block sizes of other tests, and none left for them."""
    monkeypatch.delenv(tile_file.VARIABLE, raising=False)
    file_block_sizes.cache_clear()
    yield
    file_block_sizes.cache_clear()


@pytest.fixture
def tiles(tmp_path, fresh, monkeypatch):
    """A tile file with block sizes for this CPU's interpreter, named by FLASHSIGN_TILES."""
    path = tmp_path / "tiles.json"
    tile_file.write(path, "cpu", {FORWARD: BETTER, Kernel("moment_keys", 4, 16): RowBlockSizes(16, 4, 1, 1)})
    monkeypatch.setenv(tile_file.VARIABLE, str(path))
    return path


def distance(blocks, goal):
    return 1 + sum(abs(math.log2(a / b)) for a, b in zip(vars(blocks).values(), vars(goal).values(), strict=True))


def test_the_climb_ends_at_the_fastest_block_sizes():
    goal = BlockSizes(128, 64, 8, 4)
    best, times = climb(START, lambda blocks: distance(blocks, goal), lambda blocks: True)
    assert best == goal
    assert times[goal] == min(times.values()) == 1


@pytest.fixture
def few_steps(fresh, monkeypatch):
    """All block sizes have one neighbour, whose last number is one more, up to three."""

    def one(blocks):
        *_, (name, last) = vars(blocks).items()
        return iter([type(blocks)(**{**vars(blocks), name: last + 1})] if last < 3 else [])

    monkeypatch.setattr(search, "neighbours", one)


def clock(call):
    """The more stages or programs the faster; the call is made."""
    call()
    *_, in_turn = call.args[0].values()
    return 1 / list(vars(in_turn).values())[-1]


@pytest.fixture
def trusting(monkeypatch):
    """Results are not checked: for tests of what is done with what is found."""
    monkeypatch.setattr(Search, "is_right", lambda self, name, tiles: True)


@interpreted
@pytest.mark.parametrize("method", ["stream", "moments"])
def test_a_search_takes_every_kernel_of_a_method(few_steps, trusting, method):
    found = list(tuning := Search(BAGS, method, CPU, clock, sizes=(7,)))
    assert [x.kernel.name for x in found] == [*search.FORWARD[method], *search.BACKWARD[method]]
    for x in found:
        assert list(vars(x.after).values())[-1] == max(3, list(vars(x.before).values())[-1])
        assert tuning.tiles[x.kernel.name] == x.after
        assert x.ms_after <= x.ms_before < math.inf


@interpreted
@pytest.mark.parametrize(("name", "which"), [("key_gradients", 1), ("key_gradients", 2), ("query_gradient", 0)])
def test_a_search_refuses_block_sizes_with_a_wrong_gradient(few_steps, monkeypatch, name, which):
    from flashsign.triton.streaming import calls as stream

    right = stream.backward

    def wrong(*call):
        *_, tiles, dq_by_moments = call
        gradients = list(right(*call))
        if tiles and tiles[name].stages == 3 and (which or not dq_by_moments):
            gradients[which] = gradients[which] * 1.001
        return tuple(gradients)

    monkeypatch.setattr(stream, "backward", wrong)
    found = Search(BAGS, "stream", CPU, clock, sizes=(7,)).tune(name)
    assert (found.after, found.tried) == (found.before, 2)


@interpreted
def test_what_is_found_is_printed_and_written(few_steps, trusting, tmp_path, capsys, monkeypatch):
    path = tmp_path / "new" / "tiles.json"
    monkeypatch.setattr(tune, "Search", lambda *call: Search(*call, sizes=(7,)))
    assert tune.tune_into(path, BAGS, "stream", CPU, clock)
    found = tile_file.read(path, "cpu")
    assert {kernel.name for kernel in found} == {"forward", "key_gradients", "query_gradient"}
    assert found[FORWARD].stages == 3
    printed = capsys.readouterr().out
    assert "1.50 times as fast" in printed
    assert str(path) in printed


def test_kernels_take_the_block_sizes_of_the_file(tiles):
    q = torch.zeros(1, 2, 20, 16)
    assert choose_block_sizes("forward", q, 16) == BETTER
    assert choose_row_block_sizes("moment_keys", q, 16) == RowBlockSizes(16, 4, 1, 1)
    # Other kernels take those of the tables.
    assert choose_block_sizes("key_gradients", q, 16) == tables.TABLES["key_gradients"][4, 16][0]
    assert choose_row_block_sizes("moment_queries", q, 16) == tables.PASSES["moment_queries"][4, 16]


def test_block_sizes_are_added_and_removed_one_by_one(tiles):
    """Two searches may write to one file."""
    other = Kernel("key_gradients", 2, 64)
    assert not tile_file.write(tiles, "cpu", {other: START})
    assert not tile_file.write(tiles, "cpu", {FORWARD: None})
    found = tile_file.read(tiles, "cpu")
    assert found[other] == START
    assert FORWARD not in found
    assert len(found) == 2
