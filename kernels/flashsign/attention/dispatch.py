"""Dispatch: torch or the GPU's kernels, the stream or moments, and which kernel of each.

Which kernel runs for q in float16 with 3000 genes?

    h200 = Device("cuda", capability=(9, 0), triton="3.6.0")
    plan((1, 8, 3000, 64), dtype=torch.float16, device=h200).kernel        # 'triton_moments'
    plan((1, 8, 3000, 64), dtype=torch.float16).kernel                     # on this machine

Decisions are made in this order, from shapes, dtypes, flags and facts about a device (Question):

    1. torch or Triton          choose_backend: dtype, head width, device, transforms
    2. the stream or moments    triton_method: measured times; torch_method: operations
                                (flashsign.tuning.costs)
    3. the stream's kernel      plan_stream: for small bags, for Hopper or the plain one

They make one Plan, which is executed forward and backward. plan() makes it of shapes alone, also
for a device that is not present, plan_call() of a call's tensors; only() asks for one path. Tables
of scores, edge sums and folds take the first decision alone, each with reasons of its own. Block
sizes: flashsign.tuning.choose. Triton is imported where a kernel is about to run, not before.

Letters: as in flashsign.attention.spherical_attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from flashsign.attention.call import AttentionCall
from flashsign.attention.validation import has_values, largest_bag_size
from flashsign.eager.transforms import transformed
from flashsign.errors import BackendUnavailable, ShapeMismatch
from flashsign.tuning import tables
from flashsign.tuning.block_sizes import ROW_STEP, padded_width
from flashsign.tuning.costs import faster, torch_method
from flashsign.tuning.device import Device, device_facts, facts_of

Backend = Literal["auto", "triton", "torch"]
Method = Literal["auto", "stream", "moments"]
Kernel = Literal[
    "torch_stream",
    "torch_moments",
    "triton_small_bags",
    "triton_stream",
    "triton_stream_hopper",
    "triton_moments",
]

KERNELS: dict[Kernel, tuple[Literal["triton", "torch"], Literal["stream", "moments"]]] = {
    "torch_stream": ("torch", "stream"),
    "torch_moments": ("torch", "moments"),
    "triton_small_bags": ("triton", "stream"),
    "triton_stream": ("triton", "stream"),
    "triton_stream_hopper": ("triton", "stream"),
    "triton_moments": ("triton", "moments"),
}
"""The backend and the method of every path. In `triton_small_bags` one program does a whole bag;
the forward kernel of `triton_stream_hopper` is written for Hopper.
"""

WIDEST = {"stream": 256, "moments": 128, "auto": 256}
"""The widest heads that the Triton kernels of a method take."""
GRID_LIMIT = 65535
"""The most programs on the second and third axis of a grid."""
FEWEST_HOPPER_KEYS = 2048
"""With fewer keys the plain kernel is faster: each program of the one for Hopper takes a whole
multiprocessor.
"""
MOMENT_KEYS_PER_WIDTH = 8
"""dq comes from moments where keys > this * width: two products of width E instead of three with
every key.
"""
HOPPER_TRITON = ("3.6.", "3.7.")
"""The releases of Triton with which the Hopper kernel was seen working: Gluon changes from release
to release.
"""


# --- torch or Triton
# -------------------------------------------------------------------------------------------------


def choose_backend(
    asked: Backend,
    device: Device,
    dtype: torch.dtype,
    *,
    width: int = 1,
    bags_and_heads: int = 1,
    method: Method = "auto",
    in_transform: bool = False,
    reason: str = "",
    preference: str = "",
) -> tuple[Literal["triton", "torch"], str]:
    """Return what computes a call, and why it is torch where torch was not asked for.

    width: of a head; bags_and_heads: number of bags times number of key heads; reason: why no
        kernel can take a call of this kind; preference: why "auto" takes torch although a kernel
        could take the call.
    Raises BackendUnavailable where "triton" is asked for and cannot run, ValueError for an unknown
    backend.
    """
    if asked not in ("auto", "triton", "torch"):
        raise ValueError(f"backend must be auto, triton or torch, not {asked!r}.")
    if asked == "torch":
        return "torch", ""
    reason = reason or why_not_triton(device, dtype, width, bags_and_heads, method, in_transform)
    if reason and asked == "triton":
        raise BackendUnavailable(f'{reason}: use backend="auto" or "torch".')
    if not reason and asked == "auto":
        interpreted = device.kind != "cuda"
        reason = (
            'Triton\'s interpreter is slow: ask for backend="triton"' if interpreted else preference
        )
    return "torch" if reason else "triton", reason


def why_not_triton(
    device: Device,
    dtype: torch.dtype,
    width: int,
    bags_and_heads: int,
    method: Method,
    in_transform: bool,
) -> str:
    """Return the reason why no Triton kernel can take a call, "" where one can; arguments as of
    choose_backend.
    """
    if not (device.kind == "cuda" or device.interpreted):
        return f"The Triton kernels run on CUDA devices, and the tensors are on {device.kind}"
    if not device.triton:
        return "Triton is not installed"
    if device.kind == "cuda" and device.capability < (8, 0):
        return "The Triton kernels need a GPU of compute capability 8.0 or newer"
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"There is no kernel for {dtype}"
    if width > WIDEST[method]:
        of_method = "" if method == "auto" else f" of {method}"
        return (
            f"The kernels{of_method} take heads at most {WIDEST[method]} wide, and q's are {width}"
        )
    if bags_and_heads > GRID_LIMIT:
        return (
            f"The kernels take at most {GRID_LIMIT} bags times key heads, and there are "
            f"{bags_and_heads}"
        )
    if in_transform:
        return "The kernels support neither forward mode nor torch.func transforms"
    return ""


# --- the plan of a call of attention, and a request for one path
# -----------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The path of a call, forward and backward: made once and saved for the backward.

    kernel: a name in KERNELS; reason: why it is not a Triton kernel, "" where it is one or
        backend="torch" was given; dq_from_moments: whether the backward of a Triton stream gets dq
        from the keys' moments; method: "stream" or "moments", by which torch does the kernel's work
        where it has to.
    """

    kernel: Kernel
    reason: str = ""
    dq_from_moments: bool = False
    asked: Method = field(default="auto", compare=False, repr=False)
    """The method that a call in torch asks for; "auto": torch chooses for every group of similar
    bags.
    """

    @property
    def backend(self) -> Literal["triton", "torch"]:
        return KERNELS[self.kernel][0]

    @property
    def method(self) -> Literal["stream", "moments"]:
        return KERNELS[self.kernel][1]


class Question(NamedTuple):
    """All on which a plan depends. q, k: shapes; values: width of v; bags: how many; largest:
    numbers of keys and of queries of the largest bag, None where they are not known; requested:
    what `only` asks for.
    """

    device: Device
    dtype: torch.dtype
    q: Sequence[int]
    k: Sequence[int]
    values: int
    bags: int
    largest: tuple[int, int] | None
    method: Method
    backend: Backend
    gradients: bool
    in_transform: bool
    requested: Kernel | None = None


def plan(
    queries: Sequence[int],
    keys: Sequence[int] | None = None,
    *,
    values: int | None = None,
    dtype: torch.dtype = torch.float32,
    bags: int | None = None,
    largest: tuple[int, int] | None = None,
    method: Method = "auto",
    backend: Backend = "auto",
    gradients: bool = False,
    in_transform: bool = False,
    device: Device | torch.device | None = None,
) -> Plan:
    """Return what runs for a call of spherical_attention, from its shapes alone.

    queries, keys: the shapes of q and k; values: the width of v (default: as q). Dense:
        [C, H, N, E] and [C, K, M, E] (default: that of q). Packed: [T, H, E] and [S, K, E], with
        `bags`, the number of bags, and `largest`, the numbers of keys and of queries of the largest
        bag (default: all bags have one size). In torch a packed call chooses a method for every
        group of similar bags, and the plan is that of bags of the largest size.
    gradients: whether a backward will follow; in_transform: whether it is inside forward mode or a
        torch.func transform; device: facts, or a device of this machine (default: the current CUDA
        device where there is one, else the CPU).
    Raises BackendUnavailable where the call would, ShapeMismatch for shapes of another form,
    ValueError.
    """
    q, k = tuple(queries), tuple(queries if keys is None else keys)
    if len(q) != len(k) or len(q) != (4 if bags is None else 3):
        form = "[C, heads, rows, E]" if bags is None else "[rows, heads, E]"
        raise ShapeMismatch(
            f"queries and keys must be shapes {form}; found {list(q)} and {list(k)}."
        )
    if device is None:
        device = (
            torch.device("cuda", torch.cuda.current_device())
            if torch.cuda.is_available()
            else torch.device("cpu")
        )
    count = q[0] if bags is None else bags
    if bags is None:
        largest = k[2], q[2]
    elif largest is None:
        largest = -(-k[0] // max(1, bags)), -(-q[0] // max(1, bags))
    return _plan(
        Question(
            device if isinstance(device, Device) else device_facts(device),
            *(dtype, q, k, q[-1] if values is None else values, count, largest),
            *(method, backend, gradients, in_transform),
        )
    )


def plan_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor | None,
    offsets: Tensor | None,
    query_offsets: Tensor | None,
    method: Method,
    backend: Backend,
) -> Plan:
    """Return the plan of a call; tensors as in spherical_attention.

    While torch traces, and for tensors without values, sizes of bags are not known: the operator
    looks at them when it runs (plan_kernels).
    """
    tracing = not has_values(q)
    requested = None if tracing else _REQUESTED.get()
    if requested is not None:  # what the call itself says comes first
        of_backend, of_method = KERNELS[requested]
        if backend in ("auto", of_backend) and method in ("auto", of_method):
            method, backend = of_method, of_backend
    tensors = (q, k, v) if multiplicity is None else (q, k, v, multiplicity)
    return _plan(
        Question(
            facts_of(q),
            *(
                q.dtype,
                q.shape,
                k.shape,
                v.shape[-1],
                q.shape[0] if offsets is None else offsets.shape[0] - 1,
            ),
            *(None if tracing else largest_bag(q, k, offsets, query_offsets), method, backend),
            torch.is_grad_enabled() and any(x.requires_grad for x in tensors),
            *(not tracing and transformed(), requested),
        )
    )


_REQUESTED: ContextVar[Kernel | None] = ContextVar("flashsign_only", default=None)


@contextmanager
def only(kernel: Kernel) -> Iterator[None]:
    """Within this context, calls take one path, also where another is faster: for tests and
    measurements.

    It decides only what a call leaves open: method= and backend= of the call come first. A call
    that the path cannot take raises BackendUnavailable. A backward takes the path of its forward,
    also outside of the context or in another thread. Compiled code keeps the backend and the method
    with which it was traced; which of their kernels run is decided when it runs.
    """
    if kernel not in KERNELS:
        raise ValueError(f"only() takes one of {', '.join(KERNELS)}; found {kernel!r}.")
    token = _REQUESTED.set(kernel)
    try:
        yield
    finally:
        _REQUESTED.reset(token)


def _plan(of: Question) -> Plan:
    if of.method not in ("auto", "stream", "moments"):
        raise ValueError(f"method must be auto, stream or moments, not {of.method!r}.")
    width, packed = max(of.q[-1], of.values), len(of.q) == 3
    backend, reason = choose_backend(
        of.backend,
        of.device,
        of.dtype,
        width=width,
        bags_and_heads=of.bags * of.k[1],
        method=of.method,
        in_transform=of.in_transform,
    )
    if backend == "triton" and (not of.bags or 0 in of.q or 0 in of.k):
        backend, reason = "torch", "There is nothing to compute"
    if backend == "torch":
        if of.largest is not None:
            keys, queries = of.largest
        elif packed:
            keys, queries = of.k[0] // max(1, of.bags), of.q[0] // max(1, of.bags)
        else:
            keys, queries = of.k[2], of.q[2]
        method = torch_method(of.method, of.q[1] // of.k[1] * queries, keys, width, of.in_transform)
        return Plan(
            "torch_moments" if method == "moments" else "torch_stream", reason, asked=of.method
        )
    if triton_method(of, width) == "moments":
        return Plan("triton_moments")
    size, all_keys = of.dtype.itemsize, of.k[0] if packed else of.k[2]
    return plan_stream(
        of.device,
        size,
        width,
        of.values,
        all_keys,
        of.bags if packed else 1,
        of.largest,
        of.requested,
    )


def triton_method(of: Question, width: int) -> Literal["stream", "moments"]:
    """Return the method that Triton's kernels take: for "auto" the one that is faster by the
    measured costs.

    Of packed bags the mean size decides, so that it does not change with the largest of a batch.
    """
    if of.method != "auto":
        return of.method
    if width > WIDEST["moments"]:
        return "stream"
    q, k, packed = of.q, of.k, len(of.q) == 3
    queries, keys = (q[0] / of.bags, k[0] / of.bags) if packed else (q[2], k[2])
    return faster(
        of.dtype.itemsize, width, of.bags, q[1], k[1], queries, keys, of.gradients, packed
    )


# --- which kernel of Triton's stream
# ---------------------------------------------------------------------------------


def plan_stream(
    device: Device,
    size: int,
    width: int,
    values: int,
    keys: int,
    bags: int,
    largest: tuple[int, int] | None,
    requested: Kernel | None,
) -> Plan:
    """Return the kernels that stream a call.

    Raises BackendUnavailable where the one of `only` cannot take it.

    size: bytes of a number; width, values: of a head and of its values; keys: of a bag, or of all
        packed bags; bags: packed ones, 1 where bags are dense; largest: as in Question.
    """
    width, values = width + -width % ROW_STEP, values + -values % ROW_STEP
    table = tables.SMALL_BAGS.get((size, padded_width(width)))
    small = table is not None and largest is not None
    small = small and largest[0] <= table.keys and largest[1] <= tables.MOST_QUERIES  # type: ignore[index,union-attr]
    hopper = (size, width) in tables.HOPPER and has_hopper(device)
    if requested in ("triton_small_bags", "triton_stream", "triton_stream_hopper"):
        if not {"triton_stream": True, "triton_small_bags": small, "triton_stream_hopper": hopper}[
            requested
        ]:
            raise BackendUnavailable(
                f"only({requested!r}) asks for a kernel that cannot take this call."
            )
        kernel = requested
    elif small:
        kernel = "triton_small_bags"
    else:
        hopper = hopper and keys // max(1, bags) >= FEWEST_HOPPER_KEYS
        kernel = "triton_stream_hopper" if hopper else "triton_stream"
    from_moments = kernel != "triton_small_bags" and dq_from_moments(padded_width(width), keys)
    return Plan(kernel, "", from_moments)


def plan_kernels(call: AttentionCall, method: Method) -> Plan:
    """Return the plan of a call that is in the kernels' layout already, by one method: for compiled
    code.
    """
    if method == "moments":
        return Plan("triton_moments")
    device = device_facts(call.q.device)
    size = call.q.element_size()
    width = call.q.shape[3]
    values = call.v.shape[3]
    bags = call.bags if call.packed else 1
    largest = largest_bag(call.q, call.k, call.offsets, call.query_offsets)
    return plan_stream(
        device, size, width, values, call.k.shape[2], bags, largest, _REQUESTED.get()
    )


def largest_bag(
    q: Tensor, k: Tensor, offsets: Tensor | None, query_offsets: Tensor | None
) -> tuple[int, int] | None:
    """Return the numbers of keys and of queries of the largest bag.

    None while a CUDA graph is recorded, as the host cannot read offsets then.
    """
    if offsets is None or query_offsets is None:
        return k.shape[-2], q.shape[-2]
    if offsets.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    return largest_bag_size(offsets), largest_bag_size(query_offsets)


def has_hopper(device: Device) -> bool:
    """Return whether the kernel for Hopper runs on a device."""
    return (
        device.kind == "cuda"
        and device.capability == (9, 0)
        and device.triton.startswith(HOPPER_TRITON)
    )


def dq_from_moments(width: int, keys: int) -> bool:
    """Return whether the stream's backward gets dq from the keys' moments because that is less
    work.

    width: of a head, padded; keys: of a bag, or of all bags together where they are packed.
    """
    return width <= WIDEST["moments"] and keys > MOMENT_KEYS_PER_WIDTH * width
