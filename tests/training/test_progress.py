"""How far a training is said to be."""

import io
import re
from types import SimpleNamespace

import pytest
import torch

from grn.training.checkpoints import MONITOR
from grn.training.progress import ProgressBar, ProgressLines


def trainer_at(step: int) -> SimpleNamespace:
    metrics = {MONITOR: torch.tensor(0.25)}
    return SimpleNamespace(
        global_step=step, is_global_zero=True, sanity_checking=False, callback_metrics=metrics
    )


@pytest.mark.parametrize(("every", "said"), [(0.0, 5), (60.0, 0)])
def test_lines_are_due_after_some_seconds_and_say_what_is_left(every, said):
    lines = []
    progress = ProgressLines(lines.append, 8, every)
    progress.on_train_start(trainer_at(3))  # resumed after step 3
    for step in range(4, 9):
        progress.on_train_batch_end(trainer_at(step))
    assert len(lines) == said
    assert all(
        re.fullmatch(rf"step {4 + n}/8  \d+ s, about \d+ s left", line)
        for n, line in enumerate(lines)
    )


def test_a_validation_has_its_line():
    lines = []
    progress = ProgressLines(lines.append, 8)
    progress.on_train_start(trainer_at(0))
    progress.on_validation_end(trainer_at(4), None)
    assert lines == ["step 4/8  validation loss 0.2500  0 s"]


def test_the_bar_counts_steps():
    from rich.console import Console

    bar = ProgressBar(8)
    bar.bar.live.console = Console(file=io.StringIO(), force_terminal=True, width=120)
    bar.on_train_start(trainer_at(2))
    bar.on_train_batch_end(trainer_at(5))
    bar.on_validation_end(trainer_at(5), None)
    bar.bar.refresh()
    bar.on_train_end()
    shown = bar.bar.live.console.file.getvalue()
    assert "step 5/8" in shown and "validation loss 0.2500" in shown
