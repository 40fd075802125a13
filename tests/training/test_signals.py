"""Signals during training: they save and raise Interrupted, wherever in a step or a validation they
arrive.
"""

import os
import signal

import pytest
import torch

from grn.cli.exit_codes import exit_code_of
from grn.runtime.errors import Interrupted
from grn.training.callbacks import Signals
from grn.training.run import train
from grn.training.task import Task

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 143, signal.SIGHUP: 143}
BOTH = pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name
)
EVERY = pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)


def send(monkeypatch, hook: str, at_call: int, *numbers: signal.Signals) -> None:
    """Call number `at_call` of the task's `hook` sends the signals first; the calls are unchanged
    otherwise.
    """
    calls, original = [], getattr(Task, hook)

    def sending(task, *arguments):
        calls.append(arguments)
        if len(calls) == at_call:
            for number in numbers:
                os.kill(os.getpid(), number)
        return original(task, *arguments)

    monkeypatch.setattr(Task, hook, sending)


@pytest.fixture(autouse=True)
def handlers():
    """The handlers of the test process, which are restored however a run ends."""
    before = {number: signal.getsignal(number) for number in CODES}
    # A shell starts background jobs with Ctrl-C ignored, and the tests may be one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield before | {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def run(make_config, tmp_path, capsys, handlers):
    """Trains as the command does; returns exit code, stderr and the steps of the checkpoints."""

    def call(**trainer):
        def command() -> None:
            train(make_config(**trainer), tmp_path / "run", say=lambda line: None)

        try:
            code = exit_code_of(command)
        except SystemExit as left:  # what a command would end with
            code = left.code
        assert {number: signal.getsignal(number) for number in CODES} == handlers, (
            "a run restores the handlers"
        )
        saved = {
            path.stem: step(path) for path in (tmp_path / "run" / "checkpoints").glob("*.ckpt")
        }
        return code, capsys.readouterr().err, saved

    return call


def step(path) -> int:
    return torch.load(path, map_location="cpu", weights_only=True)["global_step"]


@EVERY
def test_a_signal_during_a_step_saves_that_step(run, monkeypatch, number):
    send(monkeypatch, "training_step", 3, number)
    code, stderr, saved = run()
    assert (code, saved["last"]) == (CODES[number], 3)
    assert (
        stderr.startswith(f"error: stopped by {number.name}: saved step 3 in ")
        and len(stderr.splitlines()) == 1
    )


@pytest.mark.parametrize(
    ("number", "batch_size"), [(signal.SIGTERM, 8), (signal.SIGTERM, 3), (signal.SIGINT, 8)]
)
def test_a_signal_during_a_validation_ends_it_and_saves(run, monkeypatch, number, batch_size):
    """Lightning's own handler of SIGTERM would leave after the batch, with exit code 0 and nothing
    saved.
    """
    send(monkeypatch, "validation_step", 1, number)
    code, stderr, saved = run(batch_size=batch_size)
    assert (code, saved) == (CODES[number], {"last": 2, "best": 2})
    assert stderr.startswith(f"error: stopped by {number.name}: saved step 2 in ")


@BOTH
def test_a_signal_during_the_last_validation_stops_the_run(run, monkeypatch, number, tmp_path):
    send(monkeypatch, "validation_step", 1, number)
    code, _, saved = run(max_steps=2)
    assert (code, saved["last"]) == (CODES[number], 2)
    assert not (tmp_path / "run" / "model").exists(), "nothing is done after it"


@BOTH
def test_a_signal_after_the_last_validation_stops_the_run(run, monkeypatch, number, tmp_path):
    # callbacks come first
    monkeypatch.setattr(Task, "on_validation_end", lambda task: os.kill(os.getpid(), number))
    code, stderr, saved = run(max_steps=2)
    assert (code, saved["last"]) == (CODES[number], 2)
    assert "after the last step; the checkpoints are in" in stderr
    assert not (tmp_path / "run" / "model").exists()


@BOTH
def test_a_second_ctrl_c_ends_at_once_with_130(run, monkeypatch, number):
    send(monkeypatch, "training_step", 2, number, signal.SIGINT)
    code, stderr, saved = run()
    assert (code, saved) == (130, {})
    assert (
        stderr.startswith("error: stopped by SIGINT: at once; ") and len(stderr.splitlines()) == 1
    )


@BOTH
def test_a_signal_before_the_first_step_ends_at_once(run, monkeypatch, number):
    send(monkeypatch, "configure_optimizers", 1, number)
    code, stderr, saved = run()
    assert (code, saved) == (CODES[number], {})
    assert stderr.startswith(f"error: stopped by {number.name}") and len(stderr.splitlines()) == 1


def test_lightning_s_own_exit_by_sigterm_is_an_interruption(make_config, tmp_path, monkeypatch):
    """Before our handlers are set, and in a process that did not start in grn.cli."""
    monkeypatch.setattr(Signals, "on_train_start", lambda self, trainer, task: None)
    send(monkeypatch, "training_step", 1, signal.SIGTERM)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(Interrupted) as caught:
            train(make_config(), tmp_path / "run", say=lambda line: None)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught.value.signum == signal.SIGTERM


def test_workers_that_prepare_batches_ignore_signals(tmp_path):
    signals = Signals(tmp_path)
    signals.process = os.getpid() + 1
    signals.receive(signal.SIGINT, None)
    signals.receive(signal.SIGINT, None)
    assert signals.received is None


def test_a_run_under_nohup_goes_on(make_config, tmp_path, monkeypatch):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    send(monkeypatch, "training_step", 2, signal.SIGHUP)
    assert train(make_config(max_steps=3), tmp_path / "run", say=lambda line: None) is not None
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
