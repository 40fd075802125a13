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
INT, TERM = signal.SIGINT, signal.SIGTERM


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


# Where signals arrive, what is said of the last of them, and the steps of the checkpoints.
DURING = [("training_step", 3, [each], {}, ": saved step 3 in ", (3, 2)) for each in CODES]
# Lightning's own handler of SIGTERM would leave after the batch of a validation, with exit code 0
# and nothing saved.
DURING += [
    ("validation_step", 1, [TERM], {}, ": saved step 2 in ", (2, 2)),
    ("validation_step", 1, [TERM], {"batch_size": 3}, ": saved step 2 in ", (2, 2)),
    ("validation_step", 1, [INT], {}, ": saved step 2 in ", (2, 2)),
]
for each in (INT, TERM):
    DURING += [
        ("validation_step", 1, [each], {"max_steps": 2}, ": saved step 2 in ", (2, 2)),
        ("on_validation_end", 1, [each], {"max_steps": 2}, ": after the last step; ", (2, 2)),
        ("training_step", 2, [each, INT], {}, ": at once; ", ()),
        ("configure_optimizers", 1, [each], {}, "", ()),
    ]


@pytest.mark.parametrize(("hook", "call", "sent", "trainer", "said", "saved"), DURING)
def test_a_signal_ends_a_run_and_saves_what_can_be(
    run, monkeypatch, tmp_path, hook, call, sent, trainer, said, saved
):
    send(monkeypatch, hook, call, *sent)
    code, stderr, checkpoints = run(**trainer)
    assert code == CODES[sent[-1]]
    assert checkpoints == dict(zip(("last", "best"), saved, strict=False))
    assert stderr.startswith(f"error: stopped by {sent[-1].name}{said}")
    assert len(stderr.splitlines()) == 1
    assert not (tmp_path / "run" / "model").exists(), "nothing is done after it"


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
