"""Launches past Triton's own look at every argument: what counts as the same kernel, on kernels that only count."""

import pytest
import torch

pytest.importorskip("triton")
launch = pytest.importorskip("flashsign.triton.common.launch")


class Compiled:
    """As Triton's."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *arguments: self.launches.append((grid, arguments))


class Kernel:
    """As Triton's: launching compiles, and gives what was compiled."""

    arg_names = ["x", "y", "stride", "size", "eps", "E", "PACKED"]  # noqa: RUF012

    def __init__(self):
        self.compiled = []

    def __getitem__(self, grid):
        def run(*arguments, **options):
            self.compiled.append(Compiled())
            return self.compiled[-1]

        return run


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(launch, "LIGHT", True)
    monkeypatch.setattr(launch, "_COMPILED", {})
    return Kernel()


def start(kernel, x=None, y=None, stride=32, size=48, eps=1e-6, constants=None, warps=4):
    x = torch.zeros(64) if x is None else x
    launch.start(kernel, (3, 2), (x, y), (stride, size, eps), constants or {"E": 16, "PACKED": False}, num_warps=warps)
    return len(kernel.compiled)


def test_what_was_launched_before_is_launched_by_its_compiled_kernel(kernel):
    x = torch.zeros(64)
    assert start(kernel) == start(kernel, x, stride=64, size=16, eps=0.3) == 1
    assert kernel.compiled[0].launches == [((3, 2, 1), (x, None, 64, 16, 0.3, 16, False))]


@pytest.mark.parametrize(
    "change",
    [
        {"stride": 33},
        {"stride": 1},
        {"stride": 0},
        {"size": 2**31},
        {"eps": 0},
        {"x": torch.zeros(65)[1:]},
        {"x": torch.zeros(64, dtype=torch.float16)},
        {"y": torch.zeros(1)},
        {"constants": {"E": 32, "PACKED": False}},
        {"warps": 8},
    ],
    ids=str,
)
def test_what_triton_compiles_anew_for_is_compiled_anew(kernel, change):
    assert (start(kernel), start(kernel, **change), start(kernel), start(kernel, **change)) == (1, 2, 2, 2)


def test_rows_that_are_not_a_multiple_of_16_numbers_apart_are_copied():
    rows = torch.randn(2, 3, 5, 48)
    assert launch.aligned(rows) is rows and launch.steps(rows) == (720, 240, 48)
    apart = torch.randn(2, 3, 5, 40)[..., :32]
    copy = launch.aligned(apart)
    assert torch.equal(copy, apart) and launch.steps(copy) == (480, 160, 32)
    for other in (rows[:1].expand(2, -1, -1, -1), rows.mT, rows.flatten()[1:-47].view(1, 1, -1, 48)):
        assert launch.aligned(other) is not other


def test_the_stride_of_an_axis_of_one_does_not_count():
    rows = torch.randn(1000).as_strided((1, 2, 1, 16), (7, 32, 9, 1))
    assert launch.aligned(rows) is rows and launch.steps(rows) == (0, 32, 0)


def test_constants_come_in_any_order(kernel):
    assert start(kernel) == start(kernel, constants={"PACKED": False, "E": 16}) == 1
    assert kernel.compiled[0].launches[0][1][-2:] == (16, False)


def test_calls_of_like_numbers_are_not_taken_for_each_other(kernel):
    """32 and 33 count as 3 and 2 among what Triton compiles for, which are numbers too."""
    for stride, size in ((33, 32), (2, 3), (3, 2)):
        start(kernel, stride=stride, size=size)
    assert len(kernel.compiled) == 2


def test_tables_of_kernels_do_not_grow_without_end(kernel, monkeypatch):
    monkeypatch.setattr(launch, "MOST_COMPILED", 2)
    for stride in (0, 1, 33, 33):
        start(kernel, stride=stride)
    assert len(kernel.compiled) == 3 and len(launch._COMPILED) == 2


@pytest.mark.parametrize("light", [False, True])
def test_where_a_kernel_gives_nothing_back_triton_launches_every_time(kernel, monkeypatch, light):
    monkeypatch.setattr(launch, "LIGHT", light)
    if light:  # the interpreter
        monkeypatch.setattr(Kernel, "__getitem__", lambda self, grid: lambda *x, **y: self.compiled.append(None))
    assert (start(kernel), start(kernel)) == (1, 2)
