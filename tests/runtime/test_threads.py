"""Threads wait without spinning, and there are as many as the work is worth."""

import os
import subprocess
import sys

import pytest
import torch

from grn.runtime.threads import A_THREAD, PASSIVE, most_threads, threads_for
from grn.training import run


@pytest.mark.parametrize(
    "code",
    ["import grn; grn.load", "import grn.cli.main as m; m.main = lambda _: 0; m.run(['--help'])"],
)
@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "9"}])
def test_threads_wait_passively_before_torch_is_imported_unless_the_user_says_how(code, given):
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in (*PASSIVE, "GOMP_SPINCOUNT")
    } | given
    shown = (
        "import os, sys, atexit; atexit.register(lambda: print('torch' in sys.modules, "
        "*map(os.environ.get, {})))"
    )
    script = f"{shown.format((*PASSIVE, 'GOMP_SPINCOUNT'))}; {code}"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    expected = given or PASSIVE
    values = [expected.get(name) for name in (*PASSIVE, "GOMP_SPINCOUNT")]
    assert done.stdout.split() == ["False", *map(str, values)]


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


def test_the_users_limits_hold(four, monkeypatch):
    torch.set_num_threads(3)
    with threads_for(99 * A_THREAD):
        assert torch.get_num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")
    torch.set_num_threads(4)  # as numba does
    with threads_for(99 * A_THREAD):
        assert torch.get_num_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert most_threads() == 4


def test_the_training_of_a_small_run_has_one_thread(four, make_config, tmp_path):
    at = {}
    run.train(
        make_config(max_steps=2),
        tmp_path / "run",
        say=lambda line: at.update({line[:8]: torch.get_num_threads()}),
    )
    assert at["step 2/2"] == 1 and torch.get_num_threads() == 4
