"""What a run will take in time and memory: a rehearsal of it, with few steps of training.

The rehearsal is the command `grn train` itself, in a process of its own and a folder that is removed. All but the
training's steps takes as long as in the run, so that part is measured; the steps are counted up from those that were
rehearsed. Nothing is assumed about sizes, devices or libraries.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from grn.config.files import change_config, dump_config
from grn.config.schema import Config
from grn.errors import UserError
from grn.messages import Say

BLOCKS = 4  # validations that are rehearsed; the first block of steps is slower, and the others are the measure
STEP = re.compile(r"step (\d+)/\d+  ")
CELLS = re.compile(r"\((\d+) to train,")


@dataclass(frozen=True)
class Estimate:
    """What a run takes at most: training may end before its last step (trainer.patience).

    before, training, after: seconds until training begins (cells, regulation layers), of all its steps, and after them
    (metrics, the network, the report).   steps: of training.   per_step: seconds, validations included.   memory: the
    most bytes that the process held.   gpu_memory: bytes, None without a GPU.   rehearsed: seconds that this took.
    """

    before: float
    training: float
    after: float
    steps: int
    per_step: float
    memory: int | None
    gpu_memory: int | None
    rehearsed: float

    @property
    def seconds(self) -> float:
        return self.before + self.training + self.after


def rehearse(config: Config, say: Say) -> Estimate:
    """Rehearses the run of a configuration. Raises UserError with the run's own sentence where it fails."""
    settings = config.trainer
    short = min(settings.max_steps, BLOCKS * settings.validate_every)
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "rehearsal.yaml"
        file.write_text(dump_config(change_config(config, {"trainer.max_steps": short})), encoding="utf-8")
        say(f"Rehearsing the run with at most {short} steps of training ...")
        lines, ended, memory, gpu_memory = _run([str(file), "--output", str(Path(home) / "run")])
    return estimate(lines, ended, settings.max_steps, config, memory, gpu_memory)


def estimate(
    lines: list[tuple[float, str]],
    ended: float,
    most_steps: int,
    config: Config,
    memory: int | None,
    gpu_memory: int | None,
) -> Estimate:
    """From what a rehearsal printed, each line with the seconds since its start; ended: when it was over."""
    settings = config.trainer
    cells = next(int(found[1]) for _, line in lines if (found := CELLS.search(line)))
    per_epoch = max(1, cells // settings.batch_size)
    steps = min(most_steps, (settings.max_epochs or most_steps) * per_epoch)
    ready = next(at for at, line in lines if line.startswith("Ready to train"))
    trained = next(at for at, line in lines if line.startswith("Trained "))
    seen = [(at, int(found[1])) for at, line in lines if (found := STEP.match(line))]
    (first_at, first), (last_at, last) = seen[0], seen[-1]
    per_step = (last_at - first_at) / (last - first) if last > first else (first_at - ready) / first
    training = (trained - ready) + max(0, steps - last) * per_step
    return Estimate(ready, training, ended - trained, steps, per_step, memory, gpu_memory, ended)


def _run(arguments: list[str]) -> tuple[list[tuple[float, str]], float, int | None, int | None]:
    """Runs grn train: its lines with the seconds after which each came, its seconds, its memory and the GPU's."""
    command = [sys.executable, "-u", "-m", "grn", "train", *arguments]
    started = time.monotonic()
    done = Event()
    peak: list[int] = []
    watcher = Thread(target=_watch_gpu, args=(done, peak), daemon=True)
    watcher.start()
    with (
        tempfile.TemporaryFile("w+") as problems,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=problems, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            lines = [(time.monotonic() - started, line.rstrip("\n")) for line in process.stdout]
            memory = _wait(process)
        except BaseException:
            process.terminate()
            raise
        finally:
            done.set()
            watcher.join()
        seconds = time.monotonic() - started
        if process.returncode:
            problems.seek(0)
            said = " ".join(problems.read().split()).removeprefix("error: ")
            raise UserError(said or f"The rehearsal ended with exit code {process.returncode}.")
    return lines, seconds, memory, max(peak) - peak[0] if peak else None


def _wait(process: subprocess.Popen) -> int | None:
    """Waits for the end of a process; the most bytes that it held, None where the system does not say."""
    if not hasattr(os, "wait4"):
        process.wait()
        return None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _watch_gpu(done: Event, peak: list[int]) -> None:
    """Appends the bytes in use on the GPU, by all processes, a few times a second; nothing without one."""
    import torch

    if not torch.cuda.is_available():
        return
    while not done.wait(0.2):
        free, total = torch.cuda.mem_get_info()
        peak.append(total - free)
