"""Threads wait without spinning, and there are as many as the work is worth."""

import os
import subprocess
import sys

import pytest
import torch

from grn.runtime.threads import A_THREAD, PASSIVE, threads_for
from grn.training.run import train


@pytest.mark.parametrize(
    "code",
    ["import grn; grn.load", "import grn.cli.main as m; m.main = lambda _: 0; m.run(['--help'])"],
)
@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "9"}])
def test_threads_wait_passively_before_torch_is_imported_unless_the_user_says_how(code, given):
    names = *PASSIVE, "GOMP_SPINCOUNT"
    others = {name: value for name, value in os.environ.items() if name not in names}
    shown = f"print('torch' in sys.modules, *map(os.environ.get, {names}))"
    script = f"import os, sys, atexit; atexit.register(lambda: {shown}); {code}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=others | given,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = given or PASSIVE
    assert done.stdout.split() == ["False", *(str(expected.get(name)) for name in names)]


@pytest.fixture
def four(monkeypatch):
    """A machine with four processors, all of them torch's."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("work", "expected"), [(0, 1), (A_THREAD, 1), (2 * A_THREAD, 2), (99 * A_THREAD, 4)]
)
def test_threads_are_as_many_as_the_work_is_worth(four, work, expected):
    with pytest.raises(KeyError), threads_for(work):
        assert torch.get_num_threads() == expected
        raise KeyError
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(
    ("of_torch", "of_openmp", "expected"),
    [(3, "", 3), (4, "2,1", 2), (4, "many", 4)],  # 4 of torch: as numba sets it
)
def test_the_users_limits_hold(four, monkeypatch, of_torch, of_openmp, expected):
    torch.set_num_threads(of_torch)
    monkeypatch.setenv("OMP_NUM_THREADS", of_openmp)
    with threads_for(99 * A_THREAD):
        assert torch.get_num_threads() == expected


def test_the_training_of_a_small_run_has_one_thread(four, make_config, tmp_path):
    at = {}
    train(
        make_config(max_steps=2),
        tmp_path / "run",
        say=lambda line: at.update({line[:8]: torch.get_num_threads()}),
    )
    assert at["step 2/2"] == 1 and torch.get_num_threads() == 4
