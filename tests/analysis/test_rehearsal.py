"""The estimate of a run: what a rehearsal prints is counted up to the whole run."""

from __future__ import annotations

import pytest

from grn.analysis.rehearsal import estimate, rehearse
from grn.config.files import change_config
from grn.errors import UserError

LINES = [
    (2.0, "700 cells x 765 genes (488 to train, 70 to validate, 142 to test)."),
    (10.0, "Ready to train after 8 s."),
    (17.0, "step 50/200  validation loss 1.3  7 s"),
    (22.0, "step 100/200  validation loss 1.3  12 s"),
    (27.0, "step 150/200  validation loss 1.3  17 s"),
    (32.0, "step 200/200  validation loss 1.3  22 s"),
    (33.0, "Trained 200 steps in 23 s; stopped: max_steps."),
]


def test_the_steps_that_were_not_rehearsed_take_as_long_as_those_after_the_first_block(make_config):
    found = estimate(LINES, 40.0, 1000, make_config(max_epochs=None), 5, None)
    assert (found.before, found.after, found.steps) == (10.0, 7.0, 1000)
    assert found.per_step == pytest.approx(0.1) and found.training == pytest.approx(23 + 800 * 0.1)
    assert found.seconds == pytest.approx(10 + 103 + 7) and found.memory == 5


def test_epochs_limit_the_steps(make_config):
    """488 cells in batches of 8 are 61 steps an epoch."""
    assert estimate(LINES, 40.0, 1000, make_config(max_epochs=5), None, None).steps == 305


def test_a_run_that_is_as_short_as_its_rehearsal_takes_as_long(make_config):
    short = [line for line in LINES if "step 1" not in line[1] and "step 2" not in line[1]]
    found = estimate(
        [*short[:3], (18.0, "Trained 50 steps in 8 s; stopped: max_steps.")], 20.0, 50, make_config(), 1, None
    )
    assert found.seconds == 20.0 and found.per_step == pytest.approx(7 / 50)


@pytest.mark.slow
def test_a_run_is_rehearsed_in_a_process_of_its_own(make_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    config = change_config(make_config(), {"trainer.max_steps": 20})
    found = rehearse(config, lines.append)
    assert lines == ["Rehearsing the run with at most 8 steps of training ..."]
    assert found.steps == 20 and found.seconds > 0 and 0 < found.before < found.rehearsed
    assert found.memory is None or 1e8 < found.memory < 1e11
    assert not list(tmp_path.iterdir()), "the rehearsal leaves nothing behind"


def test_a_run_that_fails_gives_its_own_sentence(make_config, tmp_path):
    config = change_config(make_config(), {"data.path": str(tmp_path / "none.h5ad")})
    with pytest.raises(UserError, match=r"none\.h5ad does not exist"):
        rehearse(config, lambda line: None)
