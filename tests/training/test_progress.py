"""How far a training is said to be."""

import re
from types import SimpleNamespace

import pytest
import torch

from grn.training.checkpoints import MONITOR
from grn.training.progress import ProgressLines


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
