"""Kernels are checked before their first use where nobody has seen them run: another GPU or another Triton.

Compilers have turned right kernels into wrong ones, at some block sizes only (docs/log.md). So on a pair of GPU and
Triton that tables.SEEN does not list, a kernel runs only after its outputs and gradients were compared with float64,
for small bags with edges, dense and packed, at all of its block sizes. That takes seconds. A kernel that is off, or
does not compile, is never used: torch computes in its place, and a warning says so once.

What was found is kept in the user's cache, by the GPU, its driver, Triton and the kernels' source. FLASHSIGN_VERIFY:

    once      check what neither tables.SEEN nor the cache knows (the default)
    always    check everything anew in every process
    never     check nothing
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashsign.tuning import tables
from flashsign.tuning.accuracy import TENSORS, Bag
from flashsign.tuning.choose import own_block_sizes
from flashsign.tuning.device import device_name
from flashsign.tuning.head_width import padded_width
from flashsign.tuning.tile_file import kernel_sources

Tensors = tuple[Tensor, ...]
Forward = Callable[..., Tensors]
"""forward(q, k, v, m, offsets, query_offsets, eps) -> o and what the backward takes, in operators.layout."""
Backward = Callable[..., Tensors]
"""backward(grad, q, k, v, m, *saved, offsets, query_offsets, eps) -> dq, dk, dv, dm of every key head."""

DRIVER = Path("/proc/driver/nvidia/version")
VARIABLE = "FLASHSIGN_VERIFY"
CHOICES = ("never", "once", "always")
SIZES = {"triton_small_bags": (1, 7, 64), "": (1, 7, 113, 1025)}
"""Numbers of genes of the bags that are checked, by kernel: around and between the sizes of tiles."""
INTERPRETED_SIZES = (1, 7, 33)
"""The same in Triton's interpreter, which is slow."""
STREAMED = ("forward", "key_gradients", "query_gradient")
EPS = 1e-6

_LOCK = threading.RLock()
_KNOWN: dict[tuple[str, torch.dtype, int, torch.device], str] = {}
_CHECKING = threading.local()  # of the thread that runs a kernel in order to check it


def setting() -> str:
    """What FLASHSIGN_VERIFY says. Raises ValueError for another word."""
    found = os.environ.get(VARIABLE, "once")
    if found not in CHOICES:
        raise ValueError(f"{VARIABLE} is {found!r}; set it to one of {', '.join(CHOICES)}, or unset it.")
    return found


def attention_is_right(kernel: str, q: Tensor, forward: Forward, backward: Backward) -> bool:
    """Whether a kernel of attention may run for calls like q [C', H, N, E]; checked before its first use.

    kernel: a name of dispatch.KERNELS.   forward, backward: the functions that run it, whatever a call looks like.
    """
    return is_right(kernel, q, partial(find_problem, kernel, q.dtype, q.shape[-1], q.device, forward, backward))


def is_right(kernel: str, q: Tensor, check: Callable[[], str]) -> bool:
    """Whether a kernel may run for tensors like q [.., E].

    check: runs it and returns what is wrong, the end of a sentence, or "". Called where the kernel has to be checked.
    """
    known = _KNOWN.get((kernel, q.dtype, q.shape[-1], q.device))
    if known is None:
        if getattr(_CHECKING, "now", False) or (q.is_cuda and torch.cuda.is_current_stream_capturing()):
            return True  # a graph is recorded after a call of the same kind, which was checked
        with _LOCK:
            known = _find_out(kernel, q, check)
    return not known


def _find_out(kernel: str, q: Tensor, check: Callable[[], str]) -> str:
    """What is wrong with a kernel, "" where nothing is; found out once for each process."""
    place = kernel, q.dtype, q.shape[-1], q.device
    if place in _KNOWN:
        return _KNOWN[place]
    wanted, name = setting(), f"{kernel} {str(q.dtype).removeprefix('torch.')} {q.shape[-1]}"
    problem: str | None = ""
    if wanted == "always" or (wanted == "once" and not _seen(q.device)):
        pair = describe_pair(q.device)
        problem = None if wanted == "always" else remembered(pair).get(name)
        if problem is None:
            problem = _checked(check)
            remember(pair, name, problem)
    if problem:
        warnings.warn(
            f"The kernel {name} is not used on {device_name(q.device)} with Triton {_triton()}, and torch computes in "
            f"its place, because {problem}. Please report this line.",
            RuntimeWarning,
            stacklevel=2,
        )
    _KNOWN[place] = problem or ""
    return _KNOWN[place]


def _seen(device: torch.device) -> bool:
    """Whether the kernels were seen right with this pair of GPU and Triton; the interpreter computes as written."""
    release = ".".join(_triton().split(".")[:2])
    return device.type != "cuda" or (device_name(device), release) in tables.SEEN


def _checked(check: Callable[[], str]) -> str:
    _CHECKING.now = True
    try:
        # Whatever the caller is in: warnings as errors would pass for a kernel that fails.
        with torch.enable_grad(), torch.autocast("cuda", enabled=False), warnings.catch_warnings(action="ignore"):
            return check()
    except torch.OutOfMemoryError:
        raise  # a device that is full says nothing about the kernel
    except Exception as error:  # compilers fail in many ways
        lines = str(error).strip().splitlines()
        return f"it cannot be run ({type(error).__name__}{f': {lines[0][:200]}' if lines else ''})"
    finally:
        _CHECKING.now = False


def find_problem(
    kernel: str, dtype: torch.dtype, width: int, device: torch.device, forward: Forward, backward: Backward
) -> str:
    """What is wrong with a kernel of attention at any of its block sizes; "" where nothing is. width: of a head."""
    sizes = SIZES.get(kernel, SIZES[""]) if device.type == "cuda" else INTERPRETED_SIZES
    padded = padded_width(width)
    # With one gene, moments subtract equal numbers, and the bound says nothing about what is left.
    bags = [Bag(genes, width, dtype, device) for genes in sizes if genes > 1 or kernel != "triton_moments"]
    for entry in range(_entries(kernel, dtype, padded, device)):
        with _only_entry(entry, dtype, padded):
            for bag in bags:
                for form in ("dense", "packed"):
                    if problem := _problem_with(bag, form == "packed", forward, backward):
                        return f"{problem} for {form} bags of {bag.genes} genes, with block sizes number {entry + 1}"
    return ""


def _problem_with(bag: Bag, packed: bool, forward: Forward, backward: Backward) -> str:
    rows, offsets = [bag.q, bag.k, bag.v, bag.m[:, None], bag.grad], None
    if packed:
        rows = [x.transpose(0, 1).flatten(1, 2)[None] for x in rows]
        offsets = torch.arange(3, device=bag.q.device) * bag.genes
    q, k, v, m, grad = rows
    saved = forward(q, k, v, m, offsets, offsets, EPS)
    found = saved[0], *backward(grad, q, k, v, m, *saved, offsets, offsets, EPS)
    if packed:
        found = tuple(x[0].reshape(x.shape[1], 2, bag.genes, *x.shape[3:]).transpose(0, 1) for x in found)
    each = dict(zip(TENSORS, found, strict=True))
    each["dm"] = each["dm"].sum(1)
    if bag.genes == 1:  # derivatives of a constant: differences of equal numbers
        each = {"o": each["o"]}
    for name, verdict in bag.judge(each).items():
        if not verdict.good:
            return f"its {name} is off by {verdict.error:.2g}, where rounding explains {verdict.bound:.2g},"
    return ""


def _entries(kernel: str, dtype: torch.dtype, width: int, device: torch.device) -> int:
    """How many choices of block sizes the tables leave to a launch."""
    if own_block_sizes(device):
        return 1  # those of a tile file, which were checked when it was written
    key = dtype.itemsize, width
    if kernel == "triton_stream_hopper":
        return len(tables.HOPPER.get(key, [0]))
    if kernel == "triton_stream":
        return max(len(tables.TABLES[name].get(key, [0])) for name in STREAMED)
    return 1


@contextmanager
def _only_entry(entry: int, dtype: torch.dtype, width: int) -> Iterator[None]:
    """Within this context launches of the stream have one choice of block sizes: the entry of this number, or the last
    one of tables that are shorter. The lists hold nothing else meanwhile; other threads find what is in them."""
    key = dtype.itemsize, width
    lists = [tables.TABLES[name].get(key) for name in STREAMED] + [tables.HOPPER.get(key)]
    whole = [None if each is None else list(each) for each in lists]
    try:
        for each, known in zip(lists, whole, strict=True):
            if each is not None and known is not None:
                each[:] = [known[min(entry, len(known) - 1)]]
        yield
    finally:
        for each, known in zip(lists, whole, strict=True):
            if each is not None and known is not None:
                each[:] = known


# --- what is remembered ---------------------------------------------------------------------------------------------


def cache_file() -> Path:
    """Where results are kept between processes."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "flashsign" / "verified.json"


def describe_pair(device: torch.device) -> str:
    """The GPU, its driver, Triton and the kernels' source, by which results are kept."""
    return f"{device_name(device)}, driver {_driver(device)}, Triton {_triton()}, kernels {_source()}"


def remembered(pair: str) -> dict[str, str]:
    """Kernel -> what was wrong with it, "" where nothing was; empty where nothing is known."""
    found = _read().get(pair)
    if not isinstance(found, dict):
        return {}
    return {str(name): problem for name, problem in found.items() if isinstance(problem, str)}


def remember(pair: str, name: str, problem: str) -> None:
    """Adds a result to the cache, where it can be written."""
    path = cache_file()
    everything = _read()
    everything[pair] = {**remembered(pair), name: problem}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(everything, file, indent=1)
        os.replace(beside, path)
    except OSError:  # a cache that cannot be written means one more check in the next process
        return


def _read() -> dict[str, Any]:
    try:
        found = json.loads(cache_file().read_text("utf-8"))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: there is no home folder
        return {}
    return found if isinstance(found, dict) else {}


@cache
def _source() -> str:
    """Twelve hexadecimal digits that change with any byte of the kernels, of their launches and of the tables."""
    sources = chain(
        kernel_sources(), kernel_sources(Path(tables.__file__).parent), kernel_sources(Path(__file__).parent)
    )
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


@cache
def _triton() -> str:
    import triton

    return str(triton.__version__)


@cache
def _driver(device: torch.device) -> str:
    if device.type != "cuda":
        return "none"
    try:
        return driver_in(DRIVER.read_text())
    except (OSError, ValueError):
        return str(torch._C._cuda_getDriverVersion())  # type: ignore[attr-defined]


def driver_in(text: str) -> str:
    """The release in what the driver says of itself. Raises ValueError where it says none."""
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    if found is None:
        raise ValueError("no release")
    return found[1]


def main() -> int:
    """Checks all kernels of attention on the current device, whatever is known of them; a line each."""
    from flashsign.dispatch import KERNELS, WIDEST, Kernel, device_facts, has_hopper
    from flashsign.operators.registration import launches

    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    print(describe_pair(device))
    wrong = 0
    of_attention: list[Kernel] = [name for name in KERNELS if name.startswith("triton_") and "parallel" not in name]
    for kernel in of_attention:
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            for width in (16, 32, 64, 128, 256):
                key = dtype.itemsize, width
                fits = {
                    "triton_small_bags": key in tables.SMALL_BAGS,
                    "triton_stream_hopper": key in tables.HOPPER and has_hopper(device_facts(device)),
                    "triton_moments": width <= WIDEST["moments"],
                }
                if not fits.get(kernel, True):
                    continue
                started = time.monotonic()
                problem = _checked(partial(find_problem, kernel, dtype, width, device, *launches(kernel)))
                wrong += bool(problem)
                name = f"{kernel} {str(dtype).removeprefix('torch.')} {width}"
                print(f"{name:<36}{time.monotonic() - started:6.1f} s  {problem or 'right'}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
