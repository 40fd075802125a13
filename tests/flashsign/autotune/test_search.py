"""The search takes block sizes that are faster and right, and its file is read only where it was made."""

import json
import math

import pytest
import torch

from flashsign.autotune import __main__ as tune
from flashsign.autotune import search
from flashsign.autotune.search import Bags, Search, climb, neighbours
from flashsign.errors import UnusableTiles
from flashsign.tuning import tables, tile_file
from flashsign.tuning.accuracy import Bag
from flashsign.tuning.block_sizes import MOST, TUNABLE, BlockSizes, Kernel, RowBlockSizes
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


def test_neighbours_differ_in_one_number_and_stay_in_range():
    found = list(neighbours(BlockSizes(16, 256, 8, 1)))
    assert BlockSizes(32, 256, 8, 1) in found
    assert BlockSizes(16, 256, 8, 2) in found
    assert all(sum(a != b for a, b in zip(vars(x).values(), (16, 256, 8, 1), strict=True)) == 1 for x in found)
    assert all(16 <= x.own <= 256 and 16 <= x.other <= 256 and 2 <= x.warps <= 8 and x.stages >= 1 for x in found)
    assert RowBlockSizes(64, 4, 3, 4) in neighbours(RowBlockSizes(64, 4, 3, 2))


def distance(blocks, goal):
    return 1 + sum(abs(math.log2(a / b)) for a, b in zip(vars(blocks).values(), vars(goal).values(), strict=True))


def test_the_climb_ends_at_the_fastest_block_sizes():
    goal = BlockSizes(128, 64, 8, 4)
    best, times = climb(START, lambda blocks: distance(blocks, goal), lambda blocks: True)
    assert best == goal
    assert times[goal] == min(times.values()) == 1


def test_the_climb_goes_round_block_sizes_that_are_wrong():
    goal, wrong = BlockSizes(128, 32, 8, 2), BlockSizes(64, 32, 4, 2)
    best, _ = climb(
        START, lambda blocks: 0.1 if blocks == wrong else distance(blocks, goal), lambda blocks: blocks != wrong
    )
    assert best == goal


def test_a_start_that_is_wrong_is_left_and_where_nothing_is_right_the_time_says_so():
    best, _ = climb(START, lambda blocks: 1.0, lambda blocks: blocks != START)
    assert best != START
    best, times = climb(START, lambda blocks: 1.0, lambda blocks: False)
    assert times[best] == math.inf


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
@pytest.mark.parametrize("cells", [1, 2], ids=["packed", "dense"])
def test_a_search_refuses_block_sizes_whose_results_are_wrong(few_steps, monkeypatch, cells):
    from flashsign.triton.streaming import calls as stream

    right = stream.forward

    def wrong(call, kernel, tiles):
        o, inverse = right(call, kernel, tiles)
        stages = tiles["forward"].stages if tiles else 2
        return (o * 1.001 if stages == 3 and call.q.shape[0] == cells else o), inverse

    monkeypatch.setattr(stream, "forward", wrong)
    found = Search(BAGS, "stream", CPU, clock, sizes=(7,)).tune("forward")
    assert (found.before.stages, found.after.stages, found.tried) == (2, 2, 2)


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


def test_block_sizes_of_16_bits_are_checked_in_both_dtypes_and_at_the_padded_width(fresh):
    bags = Bags(cells=1, heads=2, key_heads=1, genes=20, keys=9, width=48, dtype=torch.float16)
    checks = Search(bags, "stream", CPU, clock).checks
    assert {(bag.dtype, bag.q.shape[-1]) for bag in checks} == {(torch.float16, 64), (torch.bfloat16, 64)}
    assert {bag.genes for bag in checks} == {7, 113, 1000, 1025}


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
    assert choose_block_sizes("key_gradients", q, 16) == tables.KEY_GRADIENTS[4, 16][0]
    assert choose_row_block_sizes("moment_queries", q, 16) == tables.MOMENT_QUERIES[4, 16]


@interpreted
def test_each_kernel_is_launched_with_its_own_block_sizes(tiles, monkeypatch):
    from flashsign.triton.moments import calls as moments
    from flashsign.triton.streaming import calls as stream

    seen, sizes = {}, {}
    for name, kind in TUNABLE.items():
        stages = 1 + sum(type(each) is kind for each in sizes.values())
        sizes[name] = kind(*((16, 32, 4, stages) if kind is BlockSizes else (16, 4, stages, 1)))
    tile_file.write(tiles, "cpu", {Kernel(name, 4, 16): blocks for name, blocks in sizes.items()})
    file_block_sizes.cache_clear()
    for module in (stream, moments):
        start = module.start

        def spy(kernel, *call, start=start, **options):
            seen[kernel.fn.__name__, kernel.fn.__module__.removeprefix("flashsign.triton.")] = options.get("num_stages")
            return start(kernel, *call, **options)

        monkeypatch.setattr(module, "start", spy)
    bag = Bag(40, 16, torch.float32, "cpu")
    for method, name in (("stream", "query_gradient"), ("moments", "moment_key_gradients")):
        list(search.verdicts(method, name, bag, False, {}))
    launched = {
        "forward": ("stream_forward", "streaming.forward"),
        "key_gradients": ("key_gradients", "streaming.backward"),
        "query_gradient": ("stream_query_gradient", "streaming.query_gradient"),
        "moment_keys": ("sum_keys", "moments.sums"),
        "moment_queries": ("attend_moments", "moments.forward"),
        "moment_query_sums": ("sum_queries", "moments.backward"),
        "moment_query_gradients": ("query_gradients", "moments.backward"),
        "moment_key_gradients": ("key_gradients", "moments.backward"),
    }
    assert {name: seen[kernel] for name, kernel in launched.items()} == {name: x.stages for name, x in sizes.items()}


def test_block_sizes_are_added_and_removed_one_by_one(tiles):
    """Two searches may write to one file."""
    other = Kernel("key_gradients", 2, 64)
    assert not tile_file.write(tiles, "cpu", {other: START})
    assert not tile_file.write(tiles, "cpu", {FORWARD: None})
    found = tile_file.read(tiles, "cpu")
    assert found[other] == START
    assert FORWARD not in found
    assert len(found) == 2


def test_outdated_block_sizes_are_removed_with_the_next_write(tiles):
    tiles.write_text(tiles.read_text().replace("Triton", "Newton"))
    assert tile_file.write(tiles, "cpu", {FORWARD: START})
    assert tile_file.read(tiles, "cpu") == {FORWARD: START}


def changed(**changes):
    """A damage to the file: other numbers in its first entry."""

    def damage(text):
        file = json.loads(text)
        file["cpu"]["tiles"][0].update(changes)
        return json.dumps(file)

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: None, "No such file"),
        (lambda text: text[:-5], "cannot be read"),
        (lambda text: text.replace('"cpu"', '"NVIDIA A100"'), "has block sizes for NVIDIA A100, and this is cpu"),
        (lambda text: text.replace("Triton ", "Triton 2.0, not "), "checked with Triton 2.0"),
        (lambda text: text.replace(", kernels ", ", kernels f"), "kernels f"),
        (changed(kernel="edge_sums"), "edge_sums"),
        (changed(own=48), "own=48"),
        (changed(bytes=8), "bytes 8"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tiles, damage, words):
    text = damage(tiles.read_text())
    tiles.unlink() if text is None else tiles.write_text(text)
    with pytest.raises(UnusableTiles, match="autotune") as raised:
        choose_block_sizes("forward", torch.zeros(1, 2, 20, 16), 16)
    assert words in str(raised.value)
    assert str(tiles) in str(raised.value)


def test_no_tile_reaches_over_the_gap_between_packed_bags():
    from flashsign.triton.common.layout import GAP

    assert MOST["own"] <= GAP and MOST["other"] <= GAP


@interpreted
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"genes": 0}, "at least"),
        ({"width": 300}, "heads at most 256 wide"),
        ({"genes": 50, "keys": 50}, "one program"),
    ],
)
def test_bags_without_block_sizes_to_tune_are_one_sentence(changes, words):
    asked = {"cells": 1, "heads": 4, "key_heads": 2, "genes": 500, "keys": 500, "width": 16, "dtype": torch.float32}
    with pytest.raises(UnusableTiles, match=words):
        tune.bags_to_tune(Bags(**asked | changes), "stream" if changes.get("genes") == 50 else "auto", CPU)
    bags, method = tune.bags_to_tune(Bags(**asked | {"width": 40, "genes": 5000, "keys": 5000}), "auto", CPU)
    assert (bags.keys, bags.width, method) == (5000, 48, "moments")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_search_on_the_gpu(few_steps):
    device = torch.device("cuda", torch.cuda.current_device())
    bags = Bags(cells=2, heads=4, key_heads=2, genes=300, keys=300, width=32, dtype=torch.float16)
    found = list(Search(bags, "moments", device, search.device_ms))
    assert len(found) == 5
    assert all(0 < x.ms_after <= x.ms_before < math.inf for x in found)
