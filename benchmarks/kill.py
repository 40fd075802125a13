"""Kills runs at random moments, resumes them, and compares their ends with an undisturbed run's.

Each trial trains the same small run in a process of its own and ends it with SIGKILL: at a random
time, or, in two of three trials, while it is saving, as soon as a temporary file stands beside a
checkpoint, the metrics, the model or the network. Some resumed runs are killed again. In every
fourth trial the disk is full instead: no file may grow beyond a random size, and the run has to say
so and keep what it had. A run that ends must have the same metrics, edges, model and checkpoints,
to the last bit.

Two more kinds of trial have numbers of their own. In one the run lies on a small file system of its
own, which fills up while it trains and is emptied again (skipped, with a word, where nobody may
mount one). In the other two processes train together and one of them is killed: the other one must
end, too, and the run must end as two processes that were left alone.

    python benchmarks/kill.py --trials 100
    python benchmarks/kill.py --trials 100 --temporary /dev/shm    # on another file system
    python benchmarks/kill.py --trials 0 --small-disks 10 --pairs 5
"""

from __future__ import annotations

import hashlib
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import torch
from arguments import Option, read_options

from grn.config.files import load_config
from grn.config.schema import Config
from grn.runtime.errors import RunFolderError
from grn.runtime.run_folder import config_of
from grn.training.run import train

MOST_KILLS = 3  # of one trial
LONGEST = 120  # seconds of one process, after which it hangs
DONE, REFUSED, FAULT = 0, 3, 4  # how a process ends that is not killed
COMPARED = ("metrics.csv", "edges.parquet", "model/card.json", "model/model.safetensors")


def tiny(**trainer: object) -> Config:
    return Config.model_validate(
        {
            "data": {
                "path": "simulated:",
                "genes": "all",
                "label_key": "cell_type",
                "simulated": {"cells": 80, "genes": 16, "regulators": 4, "cell_types": 2},
            },
            "model": {"width": 8, "members": 2, "hidden": 16},
            "trainer": {
                "max_steps": 20,
                "validate_every": 2,
                "batch_size": 8,
                "accelerator": "cpu",
                **trainer,
            },
        }
    )


def process(run: Path, largest: int | None = None) -> int:
    """Starts, or resumes, the run in a process of its own; returns its id. largest: of a file, in
    bytes.
    """
    child = os.fork()
    if child:
        return child
    code = FAULT
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        if largest is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        try:
            if (run / "log.txt").exists():
                train(load_config(config_of(run)), resume=run, say=lambda line: None)
            else:
                train(tiny(), run, say=lambda line: None)
            code = DONE
        except (RunFolderError, OSError):
            code = REFUSED
    finally:
        os._exit(code)


def ended(child: int, seconds: float) -> int | None:
    """The exit status of a process that ends within some seconds, else None."""
    until = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(0.0005)


def kill_while_saving(child: int, run: Path, at: int) -> int | None:
    """Kills the process when the temporary file number `at` appears; its exit status where it ends
    before.
    """
    seen: set[str] = set()
    until = time.monotonic() + LONGEST
    while time.monotonic() < until:
        for folder in (run, run / "checkpoints"):
            if folder.is_dir():
                seen |= {entry.name for entry in os.scandir(folder) if entry.name.startswith(".")}
        if len(seen) >= at:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
    raise TimeoutError


def content(run: Path) -> dict[str, str]:
    """A hash of each file that is compared, and of what the checkpoints say."""
    found = {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in COMPARED}
    for name in ("last", "best"):
        saved = torch.load(
            run / "checkpoints" / f"{name}.ckpt", map_location="cpu", weights_only=True
        )
        tensors = b"".join(tensor.numpy().tobytes() for tensor in saved["state_dict"].values())
        found[name] = hashlib.sha256(tensors).hexdigest()
    return found


def trial(number: int, home: Path, expected: dict[str, str], seconds: float) -> str:
    """`same`, or what was wrong; `seconds`: that a whole run takes."""
    draw, run, status = random.Random(number), home / f"run{number}", None
    for attempt in range(MOST_KILLS):
        if attempt and draw.random() < 0.6:
            break
        if number % 4 == 3:
            child = process(run, int(2 ** draw.uniform(8, 19)))
            status = ended(child, LONGEST)
            if status not in (DONE, REFUSED):
                return f"on a full disk it ended with {status}"
        elif draw.random() < 2 / 3:
            status = kill_while_saving(process(run), run, draw.randrange(1, 40))
        else:
            child = process(run)
            status = ended(child, draw.uniform(0, seconds))
            if status is None:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        if status == DONE:
            break
        if status == FAULT:
            return "it ended with a fault"
        if run.exists() and not (run / "config.yaml").exists():
            shutil.rmtree(run)  # killed in the milliseconds before it is a run
    # even with all files there: it may have been killed while it replaced one of them
    if status != DONE:
        status = ended(process(run), LONGEST)
        if status != DONE:
            return f"it could not be resumed: it ended with {status}"
    return compared(run, expected)


def compared(run: Path, expected: dict[str, str]) -> str:
    """`same`, or what a run that has ended left behind or has other than expected; the run is
    removed.
    """
    if left := [path.name for path in run.rglob(".*")]:
        return f"it left {left}"
    found = content(run)
    different = [name for name in expected if found[name] != expected[name]]
    shutil.rmtree(run)
    return f"{', '.join(different)} differ" if different else "same"


def small_disk(number: int, home: Path, expected: dict[str, str]) -> str:
    """A run on a file system of 16 MiB, most of which something else takes at a random time; as
    `trial`.
    """
    draw, disk = random.Random(f"disk {number}"), home / f"disk{number}"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        return "skipped: no file system may be mounted here"
    try:
        other, run = disk / "other", disk / "run"
        child = process(run)
        status = ended(child, draw.uniform(0, 3))
        if status is None:
            with suppress(OSError), other.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(draw.choice((1, 100, 4096))))
            status = ended(child, LONGEST)
        if status not in (DONE, REFUSED):
            return f"on a small disk it ended with {status}"
        other.unlink(missing_ok=True)
        if run.exists() and not (run / "config.yaml").exists():
            shutil.rmtree(run)
        if status != DONE and (status := ended(process(run), LONGEST)) != DONE:
            return f"it could not be resumed: it ended with {status}"
        return compared(run, expected)
    finally:
        subprocess.run(["umount", str(disk)], check=False)


PAIR = """
import sys
from pathlib import Path
import kill
from grn.config.files import load_config
from grn.runtime.run_folder import config_of
from grn.training.run import train
run = Path(sys.argv[1])
said = lambda line: None
if (run / "checkpoints" / "last.ckpt").exists():
    train(load_config(config_of(run)), resume=run, say=said)
else:
    train(kill.tiny(devices=2, strategy="ddp"), run, say=said)
"""


def pair(run: Path) -> list[subprocess.Popen]:
    """Two processes that train `run` together, as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(2):
        world = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": 2,
            "LOCAL_WORLD_SIZE": 2,
            "MASTER_PORT": port,
        }
        environment = {
            **os.environ,
            **{name: str(value) for name, value in world.items()},
            "MASTER_ADDR": "127.0.0.1",
        }
        environment |= {"GLOO_SOCKET_IFNAME": "lo", "TORCHELASTIC_RUN_ID": "kill"}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", PAIR, str(run)],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
    return started


def left_alone(run: Path) -> bool:
    """Whether a pair that nobody disturbs finishes the run."""
    return all(each.wait(LONGEST) == 0 for each in pair(run))


def one_of_two(number: int, home: Path, expected: dict[str, str]) -> str:
    """A run of two processes of which one dies once there is a checkpoint; as `trial`."""
    draw, run = random.Random(f"pair {number}"), home / f"pair{number}"
    both = pair(run)
    try:
        until = time.monotonic() + LONGEST
        while not (run / "checkpoints" / "last.ckpt").exists() and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.3))
        victim = draw.randrange(2)
        both[victim].kill()
        try:
            both[1 - victim].wait(LONGEST)
        except subprocess.TimeoutExpired:
            return f"process {1 - victim} did not end when the other one was killed"
    finally:
        for each in both:
            each.kill()
            each.wait()
    complete = (run / "edges.parquet").exists() and (run / "confusion.csv").exists()
    if not complete and not left_alone(run):
        return "it could not be resumed"
    return compared(run, expected)


def kill(home: Path, trials: int, first: int = 0) -> list[str]:
    """What came of each trial."""
    started = time.monotonic()
    expected = of_whole_run(home)
    seconds = time.monotonic() - started
    return [trial(number, home, expected, seconds) for number in range(first, first + trials)]


def of_whole_run(home: Path) -> dict[str, str]:
    """The content of a run that is left alone."""
    if ended(process(home / "whole"), LONGEST) != DONE:
        raise RuntimeError("the run that is left alone does not end")
    return content(home / "whole")


def small_disks(home: Path, trials: int, first: int = 0) -> list[str]:
    """What came of each run on a small disk."""
    expected = of_whole_run(home) if trials else {}
    return [small_disk(number, home, expected) for number in range(first, first + trials)]


def pairs(home: Path, trials: int, first: int = 0) -> list[str]:
    """What came of each run of two processes."""
    if not trials:
        return []
    if not left_alone(home / "whole"):
        raise RuntimeError("two processes that are left alone do not end")
    expected = content(home / "whole")
    return [one_of_two(number, home, expected) for number in range(first, first + trials)]


def main() -> int:
    options = read_options(
        __doc__,
        trials=100,
        first=Option(0, "number of the first trial of each kind"),
        temporary=Option(help="folder for temporary files, as TMPDIR; on another file system, say"),
        small_disks=Option(5, "runs on a file system that fills up"),
        pairs=Option(0, "runs of two processes of which one is killed"),
    )
    if options.temporary:
        tempfile.tempdir = os.environ["TMPDIR"] = options.temporary
    home = Path(tempfile.mkdtemp(prefix="grn-kill-", dir="."))
    try:
        found = {}
        for name, run in {
            "killed": lambda: kill(home, options.trials, options.first) if options.trials else [],
            "small disk": lambda: small_disks(home, options.small_disks, options.first),
            "one of two processes": lambda: pairs(home, options.pairs, options.first),
        }.items():
            found[name] = run()
            shutil.rmtree(home / "whole", ignore_errors=True)
            for what, times in Counter(found[name]).most_common():
                print(f"{times:5}  {name}: {what}", flush=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    every = [what for each in found.values() for what in each]
    return int(any(what != "same" and not what.startswith("skipped") for what in every))


if __name__ == "__main__":
    sys.exit(main())
