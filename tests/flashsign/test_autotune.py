"""Tiles of one's own: the search takes what is faster and right, and the file is read where it was made alone."""

import json
import math

import pytest
import torch

from flashsign import autotune, tile_file, tile_search, tuning
from flashsign.accuracy import Bag
from flashsign.errors import UnusableTiles
from flashsign.tile import Kernel, Pass, Tile
from flashsign.tile_search import Bags, Search, climb, neighbours
from grn.cli.boundary import YOURS, judge

pytest.importorskip("triton")
CPU = torch.device("cpu")
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without a GPU")

START, BETTER = Tile(32, 32, 4, 2), Tile(64, 32, 4, 2)
FORWARD = Kernel("forward", 4, 16)
BAGS = Bags(cells=1, heads=2, key_heads=1, genes=20, keys=9, width=16, dtype=torch.float32)


@pytest.fixture
def fresh(monkeypatch):
    """No tiles of other tests, and none left behind."""
    monkeypatch.delenv(tile_file.VARIABLE, raising=False)
    tuning.own_tiles.cache_clear()
    yield
    tuning.own_tiles.cache_clear()


@pytest.fixture
def tiles(tmp_path, fresh, monkeypatch):
    """A file with a tile for this CPU's interpreter, and its name in FLASHSIGN_TILES."""
    path = tmp_path / "tiles.json"
    tile_file.write(path, "cpu", {FORWARD: BETTER, Kernel("moment_keys", 4, 16): Pass(16, 4, 1, 1)})
    monkeypatch.setenv(tile_file.VARIABLE, str(path))
    return path


def test_neighbours_differ_in_one_number_and_stay_in_range():
    found = list(neighbours(Tile(16, 256, 8, 1)))
    assert Tile(32, 256, 8, 1) in found
    assert Tile(16, 256, 8, 2) in found
    assert all(sum(a != b for a, b in zip(vars(x).values(), (16, 256, 8, 1), strict=True)) == 1 for x in found)
    assert all(16 <= x.own <= 256 and 16 <= x.other <= 256 and 2 <= x.warps <= 8 and x.stages >= 1 for x in found)
    assert Pass(64, 4, 3, 4) in neighbours(Pass(64, 4, 3, 2))


def distance(tile, goal):
    return 1 + sum(abs(math.log2(a / b)) for a, b in zip(vars(tile).values(), vars(goal).values(), strict=True))


def test_the_climb_ends_at_the_fastest_tile():
    goal = Tile(128, 64, 8, 4)
    best, times = climb(START, lambda tile: distance(tile, goal), lambda tile: True)
    assert best == goal
    assert times[goal] == min(times.values()) == 1


def test_the_climb_goes_round_tiles_that_are_wrong():
    goal, wrong = Tile(128, 32, 8, 2), Tile(64, 32, 4, 2)
    best, _ = climb(START, lambda tile: 0.1 if tile == wrong else distance(tile, goal), lambda tile: tile != wrong)
    assert best == goal


def test_the_climb_leaves_a_start_that_does_not_run_and_stays_where_gains_are_scatter():
    best, _ = climb(START, lambda tile: math.inf if tile == START else tile.own / 32, lambda tile: True)
    assert best == Tile(16, 32, 4, 2)
    best, times = climb(START, lambda tile: 1.0 if tile == START else 0.98, lambda tile: True)
    assert best == START
    assert len(times) == 1 + len(list(neighbours(START)))


def test_a_start_that_is_wrong_is_left_and_where_nothing_is_right_the_time_says_so():
    best, _ = climb(START, lambda tile: 1.0, lambda tile: tile != START)
    assert best != START
    best, times = climb(START, lambda tile: 1.0, lambda tile: False)
    assert times[best] == math.inf


@pytest.fixture
def few_steps(fresh, monkeypatch):
    """Each tile has one neighbour: its last number is one more, up to three."""

    def one(tile):
        *_, (name, last) = vars(tile).items()
        return iter([type(tile)(**{**vars(tile), name: last + 1})] if last < 3 else [])

    monkeypatch.setattr(tile_search, "neighbours", one)


def clock(call):
    """The more stages or programs the faster; the call is made."""
    call()
    *_, in_turn = tuning.own_tiles(CPU).values()
    return 1 / list(vars(in_turn).values())[-1]


@interpreted
@pytest.mark.parametrize("method", ["stream", "moments"])
def test_a_search_finds_right_tiles_for_every_kernel_of_a_method(few_steps, method):
    found = list(Search(BAGS, method, CPU, clock, sizes=(7,)))
    assert [x.kernel.name for x in found] == [*tile_search.FORWARD[method], *tile_search.BACKWARD[method]]
    for x in found:
        assert list(vars(x.after).values())[-1] == max(3, list(vars(x.before).values())[-1])
        assert tuning.own_tiles(CPU)[x.kernel] == x.after
        assert x.ms_after <= x.ms_before < math.inf


@interpreted
def test_a_search_refuses_a_tile_whose_results_are_wrong(few_steps, monkeypatch):
    from flashsign.triton import stream

    right = stream.forward

    def wrong(*call):
        o, inverse = right(*call)
        return (o * 1.001 if call[-1].stages == 3 else o), inverse

    monkeypatch.setattr(stream, "forward", wrong)
    found = Search(BAGS, "stream", CPU, clock, sizes=(7,)).tune("forward")
    assert (found.before.stages, found.after.stages, found.tried) == (2, 2, 2)


@interpreted
def test_what_is_found_is_said_and_written(few_steps, tmp_path, capsys, monkeypatch):
    path = tmp_path / "new" / "tiles.json"
    monkeypatch.setattr(autotune, "Search", lambda *call: Search(*call, sizes=(7,)))
    autotune.tune_into(path, BAGS, "stream", CPU, clock)
    found = tile_file.read(path, "cpu")
    assert {kernel.name for kernel in found} == {"forward", "key_gradients", "query_gradient"}
    assert found[FORWARD].stages == 3
    said = capsys.readouterr().out
    assert "1.50 times as fast" in said
    assert str(path) in said


@interpreted
def test_where_nothing_is_faster_the_tables_stay(few_steps, tmp_path, capsys, monkeypatch):
    path = tmp_path / "tiles.json"
    wider = Kernel("forward", 4, 64)
    tile_file.write(path, "cpu", {FORWARD: BETTER, wider: BETTER})
    monkeypatch.setattr(autotune, "Search", lambda *call: Search(*call, sizes=(7,)))
    autotune.tune_into(path, BAGS, "stream", CPU, lambda call: 1.0)
    assert tile_file.read(path, "cpu") == {wider: BETTER}
    assert "nothing faster" in capsys.readouterr().out


@interpreted
def test_why_no_tile_runs_is_said(few_steps, tmp_path, capsys, monkeypatch):
    def fails(call):
        raise RuntimeError("no clock here\nsecond line")

    monkeypatch.setattr(autotune, "Search", lambda *call: Search(*call, sizes=(7,)))
    autotune.tune_into(tmp_path / "tiles.json", BAGS, "stream", CPU, fails)
    assert "forward: none that runs and is right (RuntimeError: no clock here), 2 tried" in capsys.readouterr().out
    assert FORWARD not in tuning.own_tiles(CPU)


def test_kernels_take_the_tiles_of_the_file(tiles):
    q = torch.zeros(1, 2, 20, 16)
    assert tuning.choose_tile("forward", q, 16) == BETTER
    assert tuning.choose_pass("moment_keys", q, 16) == Pass(16, 4, 1, 1)
    # The rest is as in the tables.
    assert tuning.choose_tile("key_gradients", q, 16) == tuning.KEY_GRADIENTS[4, 16][0]
    assert tuning.choose_pass("moment_queries", q, 16) == tuning.MOMENT_QUERIES[4, 16]


@interpreted
def test_results_with_the_files_tiles_are_right(tiles):
    bag = Bag(40, 16, torch.float32, "cpu")
    o, *_ = tile_search.forward("stream", bag.q, bag.k, bag.v, bag.m[:, None])
    assert bag.judge({"o": o})["o"].good


def test_devices_share_a_file(tiles):
    tile_file.write(tiles, "another GPU", {FORWARD: START})
    assert tile_file.read(tiles, "cpu")[FORWARD] == BETTER
    assert tile_file.read(tiles, "another GPU") == {FORWARD: START}
    assert not [x for x in tiles.parent.iterdir() if x != tiles]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: None, "No such file"),
        (lambda text: text[:-5], "cannot be read"),
        (lambda text: "[1]", "is not a file of tiles"),
        (lambda text: text.replace('"cpu"', '"NVIDIA A100"'), "has tiles for NVIDIA A100, and this is cpu"),
        (lambda text: json.dumps({"cpu": {**json.loads(text)["cpu"], "triton": "2.0"}}), "checked with Triton 2.0"),
        (lambda text: text.replace('"warps": 4', '"warps": "four"'), "warps of forward is 'four'"),
        (lambda text: text.replace('"warps"', '"wraps"'), "wraps"),
        (lambda text: text.replace('"kernel"', '"name"'), "kernel"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tiles, damage, said):
    text = damage(tiles.read_text())
    tiles.unlink() if text is None else tiles.write_text(text)
    with pytest.raises(UnusableTiles, match="autotune") as raised:
        tuning.choose_tile("forward", torch.zeros(1, 2, 20, 16), 16)
    assert said in str(raised.value)
    assert str(tiles) in str(raised.value)
    assert judge(raised.value) == (YOURS, str(raised.value))


def test_arguments_that_leave_nothing_to_tune_are_one_sentence(fresh, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["autotune", "tiles.json", "--width", "64", "--genes", "2000"])
    assert autotune.main() == 2
    assert "there is none" in capsys.readouterr().err


@interpreted
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"genes": 0}, "at least"),
        ({"key_heads": 3}, "multiple of key heads"),
        ({"width": 300}, "heads at most 256 wide"),
        ({"genes": 50, "method": "stream"}, "kernels of one tile"),
    ],
)
def test_bags_without_a_choice_of_tiles_are_one_sentence(changes, said):
    from argparse import Namespace

    asked = {"cells": 1, "heads": 4, "key_heads": 2, "genes": 500, "keys": None, "width": 16, "dtype": "float32"}
    with pytest.raises(UnusableTiles, match=said):
        autotune.bags_of(Namespace(**asked | {"method": "auto"} | changes), CPU)
    bags, method = autotune.bags_of(Namespace(**asked | {"method": "auto", "width": 40, "genes": 5000}), CPU)
    assert (bags.keys, bags.width, method) == (5000, 48, "moments")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_search_on_the_gpu(few_steps):
    device = torch.device("cuda", torch.cuda.current_device())
    bags = Bags(cells=2, heads=4, key_heads=2, genes=300, keys=300, width=32, dtype=torch.float16)
    found = list(Search(bags, "moments", device, tile_search.device_ms))
    assert len(found) == 5
    assert all(0 < x.ms_after <= x.ms_before < math.inf for x in found)
