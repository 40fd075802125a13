"""Launches without Triton's check of every argument: what counts as the same kernel, on kernels
that only count.
"""

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

    __name__ = "scale"
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
    monkeypatch.setattr(launch, "FAST_LAUNCH", True)
    monkeypatch.setattr(launch, "_COMPILED", {})
    return Kernel()


def start(kernel, warps=4, **changed):
    given = {"PACKED": False, "E": 16, "x": torch.zeros(64), "y": None, "of_another_kernel": 7}
    given |= {"stride": 32, "size": 48, "eps": 1e-6}
    launch.start(kernel, (3, 2), given | changed, num_warps=warps)
    return len(kernel.compiled)


def test_what_was_launched_before_is_launched_by_its_compiled_kernel(kernel):
    x = torch.zeros(64)
    assert start(kernel) == start(kernel, x=x, stride=64, size=16, eps=0.3) == 1
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
        {"E": 32},
        {"warps": 8},
    ],
    ids=str,
)
def test_what_triton_compiles_anew_for_is_compiled_anew(kernel, change):
    assert (start(kernel), start(kernel, **change), start(kernel), start(kernel, **change)) == (
        1,
        2,
        2,
        2,
    )
