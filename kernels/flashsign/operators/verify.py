"""Kernels are checked before their first use where nobody has seen them run: another GPU or another
Triton.

Compilers have turned right kernels into wrong ones, at some block sizes only (docs/log.md). So on a
pair of GPU and Triton that tables.SEEN does not list, a kernel runs only after its outputs and
gradients were compared with float64, for small bags with edges, dense and packed, at all of its
block sizes. That takes 10 to 20 seconds, mostly to compile, so a process of its own does it (python
-m flashsign.check), and torch computes in the kernel's place until it has ended: in eager and in
compiled code, and in a CUDA graph that is recorded meanwhile. A kernel that is off, or does not
compile, is never used, and a warning says so once.

What was found is kept in the user's cache, by the GPU, its driver, Triton, ptxas and the kernels'
source. FLASHSIGN_VERIFY:

    once      check what neither tables.SEEN nor the cache knows (the default)
    always    check everything anew in every process, which waits for it
    never     check nothing
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from flashsign.attention.dispatch import Kernel, Plan, dq_from_moments
from flashsign.operators import run_kernels
from flashsign.operators.ptxas import is_of_triton, ptxas_version
from flashsign.tuning import tables
from flashsign.tuning.accuracy import TENSORS, Bag
from flashsign.tuning.block_sizes import padded_width
from flashsign.tuning.choose import Tiles
from flashsign.tuning.device import capability, device_name

SOURCES = [Path(__file__).parents[1] / room for room in ("triton", "tuning", "operators")]
"""The folders whose files decide what a kernel computes: a result of a check is known as long as
they stay.
"""
DRIVER = Path("/proc/driver/nvidia/version")
VARIABLE = "FLASHSIGN_VERIFY"
CHOICES = ("never", "once", "always")
SIZES = {"triton_small_bags": (1, 7, 64), "": (1, 7, 113, 1025)}
"""Numbers of genes of the bags that are checked, by kernel: around and between the sizes of tiles.
"""
INTERPRETED_SIZES = (1, 7, 33)
"""Numbers of genes in Triton's interpreter, which is slow."""
AT_ONCE = 2
"""Checks that run at one time."""
RIGHT, WRONG = 0, 3
"""Exit statuses of a process that checks a kernel."""
CHECKING = (
    "flashsign has not been seen on %s with Triton %s: it checks each kernel against float64 in "
    "the background, and torch computes until then. `python -m flashsign.check` checks all of "
    "them now."
)


class Place(NamedTuple):
    """A kernel as it is compiled: for a dtype, a width of heads and one of values, on a device.
    Kernels of tables of scores have room for so many bags in place of a width, and heads in place
    of values where they have any.
    """

    kernel: str
    dtype: torch.dtype
    width: int
    values: int
    device: torch.device

    @property
    def name(self) -> str:
        values = f" {self.values}" if self.values != self.width else ""
        return f"{self.kernel} {str(self.dtype).removeprefix('torch.')} {self.width}{values}"


_LOCK = threading.RLock()
_KNOWN: dict[Place, str] = {}
_RUNNING: dict[Place, subprocess.Popen[str]] = {}
_WAITING: set[Place] = set()
_CHECKING = threading.local()  # of the thread that runs a kernel in order to check it


def setting() -> str:
    """Return the value of FLASHSIGN_VERIFY. Raises ValueError for another word."""
    choice = os.environ.get(VARIABLE, "once")
    if choice not in CHOICES:
        raise ValueError(
            f"{VARIABLE} is {choice!r}; set it to one of {', '.join(CHOICES)}, or unset it."
        )
    return choice


def known(kernel: str, q: Tensor, values: int, check: Callable[[], str]) -> str | None:
    """Return what is wrong with a kernel, "" where nothing is, None while it is being checked.

    The kernel is for tensors like q [.., E] and values of a width. check: runs it and returns what
    is wrong, the end of a sentence, or "".
    """
    return known_at(Place(kernel, q.dtype, q.shape[-1], values, q.device), check)


def known_at(place: Place, check: Callable[[], str]) -> str | None:
    """Return what is wrong with the kernel of a place, as `known` does."""
    problem = _KNOWN.get(place)
    if problem is None:
        if getattr(_CHECKING, "now", False):
            return ""
        with _LOCK:
            problem = _KNOWN[place] if place in _KNOWN else _find_out(place, check)
            if problem is None:
                _WAITING.add(place)
            else:
                _KNOWN[place] = problem
                _WAITING.discard(place)
    return problem


def kernels_run() -> bool:
    """Return whether every kernel that was asked for so far runs: none is being checked, and none
    is wrong.

    In the place of others torch computes, and of packed bags it reads the offsets: a CUDA graph
    cannot record that.
    """
    return not _WAITING and not any(_KNOWN.values())


def _find_out(place: Place, check: Callable[[], str]) -> str | None:
    """Return what is wrong with a kernel, "" where nothing is, None while that is not known."""
    wanted = setting()
    if wanted == "never" or (wanted == "once" and _seen(place.device)):
        return ""
    problem = None if wanted == "always" else recalled(place)
    if problem is None and wanted == "once" and place.device.type == "cuda":
        if place not in _RUNNING:
            if sum(each.poll() is None for each in _RUNNING.values()) < AT_ONCE:
                if not _RUNNING:
                    logging.getLogger("flashsign").warning(
                        CHECKING, device_name(place.device), _triton()
                    )
                _RUNNING[place] = _started(place)
            return None
        if _RUNNING[place].poll() is None:
            return None
        if (problem := _result(_RUNNING[place])) is not None:
            remember(place, problem)
    if problem is None:
        if place.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None  # the check would be recorded
        problem = checked(check)
        remember(place, problem)
    if problem:
        warnings.warn(
            f"The kernel {place.name} is not used on {device_name(place.device)} with Triton "
            f"{_triton()}, and torch computes in its place, because {problem}. Please report this "
            "line.",
            RuntimeWarning,
            stacklevel=3,
        )
    return problem


def _started(place: Place) -> subprocess.Popen[str]:
    """Start a process that checks a kernel. A kernel that breaks the GPU's state breaks its state
    alone.
    """
    kernel, dtype, width, values, device = place
    command = [
        "-m",
        "flashsign.check",
        kernel,
        str(dtype).removeprefix("torch."),
        width,
        values,
        device.index or 0,
    ]
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _result(process: subprocess.Popen[str]) -> str | None:
    """Return what a process found, which it prints in a line; None where it could not check."""
    said = process.communicate()[0].strip()
    if process.returncode < 0:
        return f"its check ended with signal {-process.returncode}"
    return {RIGHT: "", WRONG: said}.get(process.returncode)


def _seen(device: torch.device) -> bool:
    """Return whether the kernels were seen right with this pair of GPU and Triton.

    So must be the ptxas that Triton brings; the interpreter computes as written.
    """
    if device.type != "cuda":
        return True
    release = ".".join(_triton().split(".")[:2])
    return (capability(device), release) in tables.SEEN and is_of_triton(device)


def checked(check: Callable[[], str]) -> str:
    """Return what a check finds, also where it fails, the end of a sentence."""
    _CHECKING.now = True
    try:
        # Whatever the caller is in: warnings as errors would pass for a kernel that fails.
        with (
            torch.enable_grad(),
            torch.autocast("cuda", enabled=False),
            warnings.catch_warnings(action="ignore"),
        ):
            return check()
    except torch.OutOfMemoryError:
        raise  # a device that is full says nothing about the kernel
    except Exception as error:  # compilers fail in many ways
        lines = str(error).strip().splitlines()
        return f"it cannot be run ({type(error).__name__}{f': {lines[0][:200]}' if lines else ''})"
    finally:
        _CHECKING.now = False


def problem_of(kernel: Kernel, q: Tensor, values: int) -> str:
    """Return what is wrong with a kernel of attention, "" where nothing is.

    Checked are tensors like q [.., E] and values of a width, at any of its block sizes.
    """
    sizes = SIZES.get(kernel, SIZES[""]) if q.is_cuda else INTERPRETED_SIZES
    # With one gene, moments subtract equal numbers, and the bound says nothing about what is left.
    some = [genes for genes in sizes if genes > 1 or kernel != "triton_moments"]
    bags = [Bag(genes, q.shape[-1], q.dtype, q.device, values) for genes in some]
    for number, tiles in enumerate(_all_block_sizes(kernel, q, padded_width(values))):
        for bag in bags:
            for form in ("dense", "packed"):
                if problem := _problem_with(bag, form == "packed", kernel, tiles):
                    return (
                        f"{problem} for {form} bags of {bag.genes} genes, with block sizes number "
                        f"{number + 1}"
                    )
    return ""


def _problem_with(bag: Bag, packed: bool, kernel: Kernel, tiles: Tiles) -> str:
    call, grad = bag.call(packed)
    plan = Plan(kernel, "", dq_from_moments(call.width, call.k.shape[2]))
    saved = run_kernels.forward(plan, call, tiles)
    each = dict(
        zip(
            TENSORS,
            (saved[0], *run_kernels.backward(plan, call, grad, *saved, tiles=tiles)),
            strict=True,
        )
    )
    if bag.genes == 1:  # derivatives of a constant: differences of equal numbers
        each = {"o": each["o"]}
    for name, verdict in bag.judge_call(each, packed).items():
        if not verdict.good:
            return (
                f"its {name} is off by {verdict.error:.2g}, where rounding explains "
                f"{verdict.bound:.2g},"
            )
    return ""


def _all_block_sizes(kernel: Kernel, q: Tensor, values: int) -> list[Tiles]:
    """Return every choice of block sizes that the tables leave to a launch."""
    if not kernel.startswith("triton_stream"):
        return [{}]
    key = q.element_size(), padded_width(q.shape[-1])
    names = ["forward", "key_gradients", "query_gradient"] + ["hopper"] * (
        kernel == "triton_stream_hopper"
    )
    lists = {name: tables.tiles_of(name, *key, values) for name in names}
    most = max(map(len, lists.values()))
    return [
        {name: each[min(entry, len(each) - 1)] for name, each in lists.items()}
        for entry in range(most)
    ]


def cache_file(place: Place) -> Path:
    """Return where a result is kept between processes.

    a file of its own, as several processes may write at one time.
    """
    home = os.environ.get("XDG_CACHE_HOME")
    pair = hashlib.sha256(describe_pair(place.device).encode()).hexdigest()[:12]
    return (
        (Path(home) if home else Path.home() / ".cache")
        / "flashsign"
        / "verified"
        / pair
        / f"{place.name}.json"
    )


def describe_pair(device: torch.device) -> str:
    compiler = f"Triton {_triton()}, ptxas {ptxas_version(device)}"
    return f"{device_name(device)}, driver {_driver(device)}, {compiler}, kernels {_source()}"


def recalled(place: Place) -> str | None:
    """Return what was wrong with a kernel, "" where nothing was, None where that is not known."""
    try:
        problem = json.loads(cache_file(place).read_text("utf-8"))["problem"]
    except (
        OSError,
        ValueError,
        RuntimeError,
        KeyError,
        TypeError,
    ):  # RuntimeError: there is no home folder
        return None
    return problem if isinstance(problem, str) else None


def remember(place: Place, problem: str) -> None:
    """Keep a result, where it can be written."""
    try:
        path = cache_file(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"on": describe_pair(place.device), "problem": problem}, file)
        os.replace(beside, path)
    except (OSError, RuntimeError):  # one more check in the next process
        return


@cache
def _source() -> str:
    """Return a digest of the kernels, their launches and the tables."""
    return digest_of(SOURCES)


def digest_of(folders: Iterable[Path]) -> str:
    """Return twelve hexadecimal digits that change with any byte of any Python file below the
    folders.
    """
    sources = (path for folder in folders for path in sorted(folder.rglob("*.py")))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


@cache
def _triton() -> str:
    import triton

    return str(triton.__version__)


@cache
def _driver(device: torch.device) -> str:
    if device.type != "cuda":
        return "none"
    try:
        match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", DRIVER.read_text())
    except OSError:
        match = None
    return match[1] if match else str(torch._C._cuda_getDriverVersion())  # type: ignore[attr-defined]
