"""Checkpoints and the stopping rule, with a trainer that only counts."""

from types import SimpleNamespace

import pytest
import torch

from grn.runtime.errors import RunFolderError, TrainingDiverged
from grn.training.checkpoints import MONITOR, Checkpoints, save_checkpoint


class CountingTrainer(SimpleNamespace):
    """Writes its step as a checkpoint; `write` stands in for the disk."""

    def __init__(self, write=lambda path, state: torch.save(state, path)):
        super().__init__(
            global_step=0,
            sanity_checking=False,
            is_global_zero=True,
            should_stop=False,
            callback_metrics={},
        )
        self.write = write

    def save_checkpoint(self, path) -> None:
        self.write(path, {"global_step": self.global_step})


def validate(checkpoints, trainer, losses) -> int:
    """Validations until the rule stops; their number."""
    for number, loss in enumerate(losses, start=1):
        trainer.global_step += 10
        trainer.callback_metrics = {MONITOR: torch.tensor(loss)}
        checkpoints.on_validation_end(trainer, None)
        if trainer.should_stop:
            return number
    return len(losses)


def step(path) -> int:
    return torch.load(path, weights_only=True)["global_step"]


def test_best_is_the_lowest_loss_and_last_the_last(tmp_path):
    checkpoints, trainer = Checkpoints(tmp_path, patience=5, origin={}), CountingTrainer()
    validate(checkpoints, trainer, [3.0, 1.0, 2.0, 1.0])
    assert step(tmp_path / "best.ckpt") == 20, "an equal loss is no improvement"
    assert step(tmp_path / "last.ckpt") == 40
    assert not trainer.should_stop
    assert checkpoints.reason == "the last step was reached"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.ckpt", "last.ckpt"]


def test_training_stops_when_the_loss_has_not_improved_for_so_long(tmp_path):
    checkpoints, trainer = Checkpoints(tmp_path, patience=3, origin={}), CountingTrainer()
    losses = [3.0, 2.5, 2.6, 2.7, 2.4, 2.6, 2.5, 2.4, 0.0]
    assert validate(checkpoints, trainer, losses) == 8
    assert step(tmp_path / "best.ckpt") == 50


def test_a_loss_that_is_not_a_number_stops_the_run_before_anything_is_saved(tmp_path):
    checkpoints, trainer = Checkpoints(tmp_path, patience=2, origin={}), CountingTrainer()
    with pytest.raises(TrainingDiverged, match="validation loss is not finite at step 20"):
        validate(checkpoints, trainer, [2.0, float("nan"), 1.0])
    assert step(tmp_path / "best.ckpt") == step(tmp_path / "last.ckpt") == 10


def test_a_restored_stopping_rule_continues_its_count(tmp_path):
    before, trainer = Checkpoints(tmp_path, patience=3, origin={}), CountingTrainer()
    validate(before, trainer, [2.0, 2.1, 2.1])
    after = Checkpoints(tmp_path, patience=3, origin={})
    after.load_state_dict(before.state_dict())
    assert validate(after, trainer, [2.1]) == 1 and trainer.should_stop
    assert step(tmp_path / "best.ckpt") == 10


def full_disk(path, state):
    path.write_bytes(b"half")
    raise OSError(28, "No space left on device")


def half_written_without_an_error(path, state):
    torch.save(state, path)
    path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.parametrize(
    "write", [full_disk, half_written_without_an_error, lambda path, state: None]
)
def test_a_checkpoint_that_cannot_be_written_leaves_the_previous_one(tmp_path, write):
    path = tmp_path / "best.ckpt"
    trainer = CountingTrainer()
    trainer.global_step = 7
    save_checkpoint(trainer, path)
    trainer.write, trainer.global_step = write, 8
    with pytest.raises(RunFolderError, match=r"best") as caught:
        save_checkpoint(trainer, path)
    assert "\n" not in str(caught.value)
    assert step(path) == 7
    assert [each.name for each in tmp_path.iterdir()] == ["best.ckpt"]
