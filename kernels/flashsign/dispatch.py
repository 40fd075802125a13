"""Every decision which path a call takes: torch or the GPU's kernels, the stream or moments, and which kernel of each.

    plan((1, 8, 3000, 64), dtype=torch.float16).kernel        # what runs for q in float16 with 3000 genes?

Decisions are functions of shapes, dtypes, flags and facts about a device, so that plan() answers for a device that is
not there; calls take the same functions. Measured times are in flashsign.tuning.costs, block sizes in tuning.tables.
Letters as in flashsign.attention. Triton is imported where a kernel is about to run, not before.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from flashsign.eager.transforms import transformed
from flashsign.errors import BackendUnavailable
from flashsign.tuning import tables
from flashsign.tuning.block_sizes import BlockSizes
from flashsign.tuning.costs import faster
from flashsign.tuning.device import capability, multiprocessor_count
from flashsign.tuning.head_width import ROW_STEP, padded_width
from flashsign.tuning.split_keys import MOST_SPLITS, SplitKeys
from flashsign.validation import largest_bag_size

Backend = Literal["auto", "triton", "torch"]
Method = Literal["auto", "stream", "moments"]
Kernel = Literal[
    "torch_stream",
    "torch_moments",
    "torch_gene_parallel",
    "triton_small_bags",
    "triton_stream",
    "triton_stream_hopper",
    "triton_moments",
    "triton_gene_parallel",
]

KERNELS: dict[Kernel, tuple[Literal["triton", "torch"], Literal["stream", "moments"]]] = {
    "torch_stream": ("torch", "stream"),
    "torch_moments": ("torch", "moments"),
    "torch_gene_parallel": ("torch", "moments"),
    "triton_small_bags": ("triton", "stream"),
    "triton_stream": ("triton", "stream"),
    "triton_stream_hopper": ("triton", "stream"),
    "triton_moments": ("triton", "moments"),
    "triton_gene_parallel": ("triton", "moments"),
}
"""Every path, by its backend and method. `triton_small_bags` does a bag in one program; `triton_stream_hopper` is the
stream whose forward is written for Hopper; `gene_parallel` is for bags whose genes are split over processes."""

WIDEST = {"stream": 256, "moments": 128, "auto": 256}
"""The widest heads that the Triton kernels of a method take."""
GRID_LIMIT = 65535
"""The most programs on the second and third axis of a grid."""
LONG = 2048
"""Keys from which on the kernel written for Hopper is the faster one: it takes a multiprocessor for itself."""
STREAMED = 8
"""From so many keys a unit of width on, dq comes from moments: two products of width E against three with every key."""
HOPPER_TRITON = "3.6."
"""The release of Triton in which the Hopper kernel was seen working: Gluon changes from release to release."""
TORCH_PRICE = {False: 1, True: 4}
"""What an operation of torch's moments costs beside one of its stream, outside of transforms and within: there moments
are summed in float64 and took four times the time on a CPU."""

# Asked once: torch.compile cannot trace the question.
HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


# --- what a device is ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """What decisions depend on. triton: the release's version, "" where there is none; interpreted: in its interpreter,
    on a CPU."""

    kind: str
    capability: tuple[int, int] = (0, 0)
    multiprocessors: int = 1
    triton: str = ""
    interpreted: bool = False


@cache
def facts(device: torch.device) -> Device:
    """The facts of a device of this machine."""
    if device.type == "cuda":
        return Device("cuda", capability(device), multiprocessor_count(device), _triton_version())
    return Device(device.type, triton=_triton_version() if INTERPRETED else "", interpreted=INTERPRETED)


def _triton_version() -> str:
    if not HAS_TRITON:
        return ""
    import triton

    return str(triton.__version__)


# What stands for a device while torch.compile traces, which cannot ask for more: one that has kernels.
_TRACED_CUDA = Device("cuda", (8, 0), triton="traced" if HAS_TRITON else "")
_TRACED_CPU = Device("cpu", triton="traced" if HAS_TRITON else "", interpreted=INTERPRETED)


# --- asking ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What runs for a call. kernel: a name in KERNELS; reason: why it is not a Triton kernel, "" where it is or where
    torch was asked for; dq_from_moments: whether the backward of a Triton stream gets dq from moments."""

    kernel: Kernel
    reason: str = ""
    dq_from_moments: bool = False

    @property
    def backend(self) -> Literal["triton", "torch"]:
        return KERNELS[self.kernel][0]

    @property
    def method(self) -> Literal["stream", "moments"]:
        return KERNELS[self.kernel][1]


def plan(
    queries: Sequence[int],
    keys: Sequence[int] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    bags: int | None = None,
    largest: tuple[int, int] | None = None,
    method: Method = "auto",
    backend: Backend = "auto",
    gradients: bool = False,
    gene_parallel: bool = False,
    in_transform: bool = False,
    device: Device | torch.device | None = None,
) -> Plan:
    """What runs for a call of spherical_attention, from its shapes alone.

    queries, keys: the shapes of q and k, [C, H, N, E] and [C, K, M, E] (default: as q's); packed calls have [T, H, E],
    [S, K, E] and their number of bags, and `largest`, keys and queries of the largest bag (default: all alike), as
    calls know once their offsets were checked. gradients: whether a gradient will be wanted; gene_parallel: with a
    group; in_transform: under forward mode or torch.func. device: facts, or a device of this machine (default: CUDA
    where there is one, else the CPU). Packed calls in torch choose a method for every group of similar bags: the answer
    is that of bags of the largest size.
    Raises BackendUnavailable as the call would.
    """
    q, k = tuple(queries), tuple(queries if keys is None else keys)
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    known = device if isinstance(device, Device) else facts(device)
    count = q[0] if bags is None else bags
    if bags is None:
        largest = k[2], q[2]
    elif largest is None:
        largest = -(-k[0] // max(1, bags)), -(-q[0] // max(1, bags))
    chosen, chosen_method, reason = _choose(
        known, dtype, q, k, count, method, backend, gradients, gene_parallel, in_transform
    )
    if gene_parallel:
        return Plan("triton_gene_parallel" if chosen == "triton" else "torch_gene_parallel", reason)
    width = q[-1]
    if chosen == "torch":
        of_torch = torch_method(method, q[1] // k[1] * largest[1], largest[0], width, in_transform)
        return Plan("torch_moments" if of_torch == "moments" else "torch_stream", reason)
    if chosen_method == "moments":
        return Plan("triton_moments")
    width += -width % ROW_STEP
    all_keys = k[0] if bags is not None else k[2]
    if fits_small_bags(dtype.itemsize, width, largest):
        return Plan("triton_small_bags")
    hopper = suits_hopper(dtype.itemsize, width, all_keys // (1 if bags is None else max(1, bags))) and has_hopper(
        known
    )
    from_moments = dq_from_moments(padded_width(width), all_keys)
    return Plan("triton_stream_hopper" if hopper else "triton_stream", "", from_moments)


_ONLY: ContextVar[Kernel | None] = ContextVar("flashsign_only", default=None)


@contextmanager
def only(kernel: Kernel) -> Iterator[None]:
    """Within, calls take this path instead of the one that is faster: for tests and measurements.

    It decides what a call leaves open: one whose method=, backend= or group= says otherwise goes its own way. A call
    that the path cannot take raises BackendUnavailable. A backward keeps to the path of its forward, wherever it runs.
    Compiled code keeps the backend and the method with which it was traced, and takes kernels of them as asked.
    """
    if kernel not in KERNELS:
        raise ValueError(f"only knows {', '.join(KERNELS)}, not {kernel!r}.")
    token = _ONLY.set(kernel)
    try:
        yield
    finally:
        _ONLY.reset(token)


def asked_for() -> Kernel | None:
    """The path that `only` asks for."""
    return _ONLY.get()


# --- torch or Triton, stream or moments ------------------------------------------------------------------------------


def choose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor | None,
    bags: int,
    method: Method,
    backend: Backend,
    gene_parallel: bool,
) -> tuple[Literal["triton", "torch"], Method]:
    """The backend of a call, and its method: chosen for Triton, as it came for torch (which takes torch_method).

    Forms as in spherical_attention. Raises BackendUnavailable where backend="triton" cannot run.
    """
    tracing = torch.compiler.is_compiling()
    asked = None if tracing else _ONLY.get()
    if asked is not None:
        method, backend = _as_asked(asked, method, backend, gene_parallel)
    gradients = torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (multiplicity is not None and multiplicity.requires_grad)
    )
    device = (_TRACED_CUDA if q.is_cuda else _TRACED_CPU) if tracing else facts(q.device)
    in_transform = not tracing and transformed()
    chosen, method, _ = _choose(
        device, q.dtype, q.shape, k.shape, bags, method, backend, gradients, gene_parallel, in_transform
    )
    return chosen, method


def _as_asked(asked: Kernel, method: Method, backend: Backend, gene_parallel: bool) -> tuple[Method, Backend]:
    """What the call leaves open, as asked; a call whose own arguments say otherwise goes its own way."""
    of_backend, of_method = KERNELS[asked]
    agrees = backend in ("auto", of_backend) and method in ("auto", of_method)
    return (of_method, of_backend) if agrees and gene_parallel == asked.endswith("parallel") else (method, backend)


def _choose(
    device: Device,
    dtype: torch.dtype,
    q: Sequence[int],
    k: Sequence[int],
    bags: int,
    method: Method,
    backend: Backend,
    gradients: bool,
    gene_parallel: bool,
    in_transform: bool,
) -> tuple[Literal["triton", "torch"], Method, str]:
    """Backend, method (as it came for torch), and why it is not Triton; q, k: shapes."""
    if backend == "torch":
        return "torch", method, ""
    of = "moments" if gene_parallel else method
    reason = why_not_triton(device, dtype, q[-1], bags * k[1], of, in_transform)
    if not reason and gene_parallel and dtype.itemsize != 2:
        reason = f"Over several processes the kernels take 16-bit numbers alone, and q is {dtype}"
    if reason and backend == "triton":
        raise BackendUnavailable(f'{reason}: use backend="auto" or "torch".')
    if not reason and backend == "auto" and device.kind != "cuda":
        reason = 'Triton\'s interpreter is slow: ask for backend="triton"'
    # All ranks must take one path: it depends on nothing of which they may have different numbers.
    if not reason and (not bags if gene_parallel else not bags or 0 in q or 0 in k):
        reason = "There is nothing to compute"
    if reason:
        return "torch", method, reason
    if gene_parallel:
        return "triton", "moments", ""
    return "triton", triton_method(method, dtype.itemsize, q, k, bags, gradients), ""


def why_not_triton(
    device: Device, dtype: torch.dtype, width: int, bags_and_heads: int, method: Method, in_transform: bool = False
) -> str:
    """Why no Triton kernel can take a call, "" where one can.

    width: of a head; bags_and_heads: bags times key heads.
    """
    if not (device.kind == "cuda" or device.interpreted):
        return f"The Triton kernels run on CUDA devices, and q is on {device.kind}"
    if not device.triton:
        return "Triton is not installed"
    if device.kind == "cuda" and device.capability < (8, 0):
        return "The Triton kernels need a GPU of compute capability 8.0 or newer"
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"There is no kernel for {dtype}"
    if width > WIDEST[method]:
        of = "" if method == "auto" else f" of {method}"
        return f"The kernels{of} take heads at most {WIDEST[method]} wide, and q's are {width}"
    if bags_and_heads > GRID_LIMIT:
        return f"The kernels take {GRID_LIMIT} bags times key heads, and there are {bags_and_heads}"
    if in_transform:
        return "The kernels know neither forward mode nor torch.func transforms"
    return ""


def triton_method(
    method: Method, size: int, q: Sequence[int], k: Sequence[int], bags: int, gradients: bool
) -> Literal["stream", "moments"]:
    """The method that Triton's kernels take: for "auto" the one that a small measured table says is faster.

    size: bytes of a number; q, k: shapes. Of packed bags the mean counts: the size of each is on the device.
    """
    if method != "auto":
        return method
    width = q[-1]
    if width > WIDEST["moments"]:
        return "stream"
    packed = len(q) == 3
    queries, keys = (q[0] / bags, k[0] / bags) if packed else (q[2], k[2])
    return faster(size, width, bags, q[1], k[1], queries, keys, gradients, packed)


def torch_method(
    method: Method, queries: int, keys: int, width: int, in_transform: bool
) -> Literal["stream", "moments"]:
    """The method that torch takes: moments cost (N + M) E^2 operations and the stream N M E.

    queries: of all heads that share a key head.
    """
    if method != "auto":
        return method
    return "moments" if queries * keys > TORCH_PRICE[in_transform] * (queries + keys) * width else "stream"


# --- which kernel of Triton's stream ---------------------------------------------------------------------------------


def stream_kernel(q: Tensor, k: Tensor, offsets: Tensor | None, query_offsets: Tensor | None) -> Kernel:
    """The kernel that streams a call in the kernels' one layout: q [C', H, N, E], k [C', K, M, E].

    Raises BackendUnavailable where the one that `only` asks for cannot.
    """
    size, width = q.element_size(), q.shape[-1]
    asked = _ONLY.get()
    small = fits_small_bags(size, width, largest_bag(q, k, offsets, query_offsets))
    if asked in ("triton_small_bags", "triton_stream", "triton_stream_hopper"):
        hopper = (size, width) in tables.HOPPER and q.is_cuda and has_hopper(facts(q.device))
        able = {"triton_stream": True, "triton_small_bags": small, "triton_stream_hopper": hopper}
        if not able[asked]:
            raise BackendUnavailable(f"only({asked!r}) asks for a kernel that cannot take q {list(q.shape)} here.")
        return asked
    if small:
        return "triton_small_bags"
    keys = k.shape[2] if offsets is None else k.shape[2] // max(1, len(offsets) - 1)
    if suits_hopper(size, width, keys) and q.is_cuda and has_hopper(facts(q.device)):
        return "triton_stream_hopper"
    return "triton_stream"


def fits_small_bags(size: int, width: int, largest: tuple[int, int] | None) -> bool:
    """Whether one program can do a whole bag: numbers of `size` bytes, heads of a width, and keys and queries of the
    largest bag (None: not known)."""
    table = tables.SMALL_BAGS.get((size, padded_width(width)))
    return table is not None and largest is not None and largest[0] <= table.keys and largest[1] <= tables.MOST_QUERIES


def largest_bag(q: Tensor, k: Tensor, offsets: Tensor | None, query_offsets: Tensor | None) -> tuple[int, int] | None:
    """Keys and queries of the largest bag, None where the host cannot know them: while a CUDA graph is recorded."""
    if offsets is None or query_offsets is None:
        return k.shape[2], q.shape[2]
    if offsets.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    return largest_bag_size(offsets), largest_bag_size(query_offsets)


def suits_hopper(size: int, width: int, keys: int) -> bool:
    """Whether the Hopper kernel is the faster one for bags of so many keys (packed: on average)."""
    return keys >= LONG and (size, width) in tables.HOPPER


def has_hopper(device: Device) -> bool:
    """Whether the Hopper kernel runs on a device."""
    return device.kind == "cuda" and device.capability == (9, 0) and device.triton.startswith(HOPPER_TRITON)


def hopper_tile(q: Tensor, k: Tensor, query_offsets: Tensor | None) -> tuple[BlockSizes, SplitKeys]:
    """The block sizes of the Hopper kernel with which it ends first, and how it splits keys."""
    bags = 1 if query_offsets is None else max(1, len(query_offsets) - 1)
    keys = k.shape[2] // bags
    best = None
    for tile in tables.HOPPER[q.element_size(), q.shape[-1]]:
        # Packed bags have keys of their own, so many each on average, and are never split.
        rows = -(-q.shape[2] // tile.own) * q.shape[0] if query_offsets is None else q.shape[2] // tile.own + bags
        most = MOST_SPLITS if query_offsets is None else 1
        waves = SplitKeys.of(rows * q.shape[1], keys, tile, multiprocessor_count(q.device), most)
        if best is None or waves.cost < best[1].cost:
            best = tile, waves
    assert best is not None
    return best


def dq_from_moments(width: int, keys: int) -> bool:
    """Whether the stream's backward gets dq from the keys' moments, where that is less work; width: padded; keys: of
    all bags together where they are packed."""
    return width <= WIDEST["moments"] and keys > STREAMED * width


# --- edge sums -------------------------------------------------------------------------------------------------------


def choose_edge_sums(q: Tensor, sums: torch.dtype, backend: Backend) -> Literal["triton", "torch"]:
    """What adds the weights of a call to edge sums of a dtype.

    Raises BackendUnavailable where backend="triton" cannot run, and ValueError for another word.
    """
    if backend not in ("auto", "triton", "torch"):
        raise ValueError(f"backend is auto, triton or torch, not {backend!r}.")
    if backend == "torch" or (backend == "auto" and not q.is_cuda):
        return "torch"
    if sums == torch.float32:
        reason = why_not_triton(facts(q.device), q.dtype, q.shape[-1], 1, "stream", transformed())
    else:
        reason = f"The kernel's sums are float32, and these are {sums}"
    if reason and backend == "triton":
        raise BackendUnavailable(f'{reason}: use backend="auto" or "torch".')
    return "torch" if reason else "triton"
