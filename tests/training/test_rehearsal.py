"""The estimate of a run: what a rehearsal took is counted up to the whole run."""

from __future__ import annotations

import multiprocessing

import pytest

from grn.config.files import change_config
from grn.errors import UserError
from grn.training import rehearsal
from grn.training.rehearsal import Clock, estimate, rehearse


def clock(*steps: int, per_epoch: int = 61) -> Clock:
    """Begun after 10 seconds, the first 50 steps in 7, each other 50 in 5, and a second after the last."""
    found = Clock()
    found.begun, found.per_epoch = 10.0, per_epoch
    found.validations = [(step, 17.0 + 5 * place) for place, step in enumerate(steps)]
    found.ended = found.validations[-1][1] + 1
    return found


def test_the_steps_that_were_not_rehearsed_take_as_long_as_those_after_the_first_block(make_config):
    found = estimate(clock(50, 100, 150, 200), make_config(max_steps=1000), 0.0, 40.0, 5, None)
    assert (found.before, found.after, found.steps, found.memory) == (10.0, 7.0, 1000, 5)
    assert found.per_step == pytest.approx(0.1) and found.training == pytest.approx(23 + 800 * 0.1)
    assert found.seconds == pytest.approx(10 + 103 + 7)


def test_a_run_that_is_as_short_as_its_rehearsal_takes_as_long(make_config):
    found = estimate(clock(50), make_config(max_steps=50), 0.0, 20.0, 1, None)
    assert found.seconds == 20.0 and found.per_step == pytest.approx(7 / 50)


@pytest.mark.slow
def test_a_run_is_rehearsed_in_a_process_of_its_own(make_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    found = rehearse(make_config(max_steps=20), lines.append)
    assert len(lines) == 1 and found.steps == 20
    assert 0 < found.before < found.rehearsed and 1e8 < found.memory < 1e11
    assert not list(tmp_path.iterdir()), "the rehearsal leaves nothing behind"


def test_a_run_that_fails_sends_its_own_error(make_config, tmp_path):
    config = change_config(make_config(), {"data.path": str(tmp_path / "none.h5ad")})
    answers, answer = multiprocessing.Pipe(duplex=False)
    rehearsal._rehearsed(config, 2, tmp_path / "run", 0.0, answer)
    assert isinstance(answers.recv(), UserError)
