"""Every decision which path a call takes: torch or the GPU's kernels, the stream or moments, and which kernel of each.

What runs for q in float16 with 3000 genes?

    h200 = Device("cuda", capability=(9, 0), triton="3.6.0")
    plan((1, 8, 3000, 64), dtype=torch.float16, device=h200).kernel        # 'triton_moments'
    plan((1, 8, 3000, 64), dtype=torch.float16).kernel                     # on this machine

Decisions are made in this order, from shapes, dtypes, flags and facts about a device (Question):

    1. torch or Triton          why_not_triton: dtype, head width, device, transforms
    2. the stream or moments    triton_method: measured times (flashsign.tuning.costs); torch_method: operations
    3. the stream's kernel      plan_stream: for small bags, for Hopper or the plain one

They make one Plan, which is executed forward and backward. plan() makes it of shapes alone, also for a device that is
not present, plan_call() of a call's tensors; only() asks for one path. Layers that are folds have one decision, torch
in slices or the kernels of triton.folds: choose_fold. Block sizes: flashsign.tuning.choose.
Letters as in flashsign.attention. Triton is imported where a kernel is about to run, not before.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from flashsign.call import AttentionCall
from flashsign.eager.transforms import transformed
from flashsign.errors import BackendUnavailable, ShapeMismatch
from flashsign.tuning import tables
from flashsign.tuning.block_sizes import ROW_STEP, BlockSizes, padded_width
from flashsign.tuning.choose import Tiles
from flashsign.tuning.costs import faster
from flashsign.tuning.device import capability, multiprocessor_count
from flashsign.tuning.split_keys import MOST_SPLITS, SplitKeys
from flashsign.validation import has_values, largest_bag_size

Backend = Literal["auto", "triton", "torch"]
Method = Literal["auto", "stream", "moments"]
FoldKernel = Literal["logits", "mlp", "rms_norm", "attention"]
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
"""The backend and the method of every path. In `triton_small_bags` one program does a whole bag; the forward kernel of
`triton_stream_hopper` is written for Hopper."""

WIDEST = {"stream": 256, "moments": 128, "auto": 256}
"""The widest heads that the Triton kernels of a method take."""
WIDEST_FOLD = {"mlp": 256, "rms_norm": 8192, "attention": 128}
"""The widest rows of which a fold's kernel holds whole tiles; logits are sums over tiles of any number of features."""
GRID_LIMIT = 65535
"""The most programs on the second and third axis of a grid."""
MOST_BAGS = 64
"""The most bags of a table of scores for which flashsign.triton.shared_scores has tiles; torch takes twice as long."""
FEWEST_HOPPER_KEYS = 2048
"""With fewer keys the plain kernel is faster: each program of the one for Hopper takes a whole multiprocessor."""
MOMENT_KEYS_PER_WIDTH = 8
"""dq comes from moments where keys > this * width: two products of width E instead of three with every key."""
HOPPER_TRITON = ("3.6.", "3.7.")
"""The releases of Triton with which the Hopper kernel was seen working: Gluon changes from release to release."""
TORCH_MOMENT_COST = {False: 1, True: 4}
"""Time of an operation of torch's moments relative to one of its stream, outside of a transform (False) and inside
(True): inside, moments are summed in float64 and took four times as long on a CPU."""

# Found out once at import, because torch.compile cannot trace these calls.
HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


# --- what a device is ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """The facts about a device on which decisions depend.

    kind: "cuda", "cpu", ...; capability: CUDA's compute capability; triton: version of Triton, "" where it is not
    installed; interpreted: whether kernels run in Triton's interpreter, on a CPU.
    """

    kind: str
    capability: tuple[int, int] = (0, 0)
    triton: str = ""
    interpreted: bool = False


@cache
def device_facts(device: torch.device) -> Device:
    if device.type == "cuda":
        return Device("cuda", capability(device), _triton_version())
    return Device(device.type, triton=_triton_version() if INTERPRETED else "", interpreted=INTERPRETED)


def _triton_version() -> str:
    if not HAS_TRITON:
        return ""
    import triton

    return str(triton.__version__)


# While torch traces, and for tensors without values, the facts about a device cannot be looked up, and it need not be
# here; calls are planned for one that has kernels.
_TRACED_CUDA = Device("cuda", (8, 0), triton="traced" if HAS_TRITON else "")
_TRACED_CPU = Device("cpu", triton="traced" if HAS_TRITON else "", interpreted=INTERPRETED)
_TRACED_META = Device("meta", triton="traced" if HAS_TRITON else "", interpreted=INTERPRETED)


def _traced_facts(q: Tensor) -> Device:
    if q.is_cuda:
        return _TRACED_CUDA
    return _TRACED_META if q.is_meta else _TRACED_CPU


# --- the plan of a call, and a request for one path ------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What runs for a call, forward and backward: made once and saved for the backward.

    kernel: a name in KERNELS; reason: why it is not a Triton kernel, "" where it is one or backend="torch" was given;
    dq_from_moments: whether the backward of a Triton stream gets dq from the keys' moments; method: "stream" or
    "moments", by which torch does the kernel's work where it has to.
    """

    kernel: Kernel
    reason: str = ""
    dq_from_moments: bool = False
    asked: Method = field(default="auto", compare=False, repr=False)
    """The method that a call in torch asks for; "auto": torch chooses for every group of similar bags."""

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
    """What runs for a call of spherical_attention, from its shapes alone.

    queries, keys: the shapes of q and k; values: the width of v (default: as q). Dense: [C, H, N, E] and [C, K, M, E]
    (default: that of q). Packed: [T, H, E] and [S, K, E], with `bags`, the number of bags, and `largest`, the numbers
    of keys and of queries of the largest bag (default: all bags have one size). In torch a packed call chooses a method
    for every group of similar bags, and the plan is that of bags of the largest size.
    gradients: whether a backward will follow; in_transform: whether it is
    inside forward mode or a torch.func transform; device: facts, or a device of this machine (default: the current CUDA
    device where there is one, else the CPU).
    Raises BackendUnavailable where the call would, ShapeMismatch for shapes of another form, ValueError.
    """
    q, k = tuple(queries), tuple(queries if keys is None else keys)
    if len(q) != len(k) or len(q) != (4 if bags is None else 3):
        form = "[C, heads, rows, E]" if bags is None else "[rows, heads, E]"
        raise ShapeMismatch(f"queries and keys must be shapes {form}; found {list(q)} and {list(k)}.")
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
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
    """The plan of a call; tensors as in spherical_attention. While torch traces, and for tensors without values, sizes
    of bags are not known: the operator looks at them when it runs (plan_stream)."""
    tracing = not has_values(q)
    requested = None if tracing else _REQUESTED.get()
    if requested is not None:
        method, backend = _as_requested(requested, method, backend)
    tensors = (q, k, v) if multiplicity is None else (q, k, v, multiplicity)
    return _plan(
        Question(
            _traced_facts(q) if tracing else device_facts(q.device),
            *(q.dtype, q.shape, k.shape, v.shape[-1], q.shape[0] if offsets is None else offsets.shape[0] - 1),
            *(None if tracing else _largest(q, k, offsets, query_offsets), method, backend),
            torch.is_grad_enabled() and any(x.requires_grad for x in tensors),
            *(not tracing and transformed(), requested),
        )
    )


_REQUESTED: ContextVar[Kernel | None] = ContextVar("flashsign_only", default=None)


@contextmanager
def only(kernel: Kernel) -> Iterator[None]:
    """Within this context, calls take one path, also where another is faster: for tests and measurements.

    It decides only what a call leaves open: method= and backend= of the call come first. A call that the path
    cannot take raises BackendUnavailable. A backward takes the path of its forward, also outside of the context or in
    another thread. Compiled code keeps the backend and the method with which it was traced; which of their kernels run
    is decided when it runs.
    """
    if kernel not in KERNELS:
        raise ValueError(f"only() takes one of {', '.join(KERNELS)}; found {kernel!r}.")
    token = _REQUESTED.set(kernel)
    try:
        yield
    finally:
        _REQUESTED.reset(token)


def _as_requested(requested: Kernel, method: Method, backend: Backend) -> tuple[Method, Backend]:
    """Method and backend of a call within `only`: the requested ones, unless its own arguments say otherwise."""
    of_backend, of_method = KERNELS[requested]
    agrees = backend in ("auto", of_backend) and method in ("auto", of_method)
    return (of_method, of_backend) if agrees else (method, backend)


class Question(NamedTuple):
    """All on which a plan depends. q, k: shapes; values: width of v; bags: how many; largest: numbers of keys and of
    queries of the largest bag, None where they are not known; requested: what `only` asks for."""

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


def _plan(of: Question) -> Plan:
    if of.method not in ("auto", "stream", "moments"):
        raise ValueError(f"method must be auto, stream or moments, not {of.method!r}.")
    if of.backend not in ("auto", "triton", "torch"):
        raise ValueError(f"backend must be auto, triton or torch, not {of.backend!r}.")
    width = max(of.q[-1], of.values)
    reason = ""
    if of.backend != "torch":
        reason = why_not_triton(of.device, of.dtype, width, of.bags * of.k[1], of.method, of.in_transform)
        if reason and of.backend == "triton":
            raise BackendUnavailable(f'{reason}: use backend="auto" or "torch".')
        if not reason and of.backend == "auto" and of.device.kind != "cuda":
            reason = 'Triton\'s interpreter is slow: ask for backend="triton"'
        if not reason and (not of.bags or 0 in of.q or 0 in of.k):
            reason = "There is nothing to compute"
    by_torch = of.backend == "torch" or bool(reason)
    if by_torch:
        if of.largest is not None:
            keys, queries = of.largest
        elif len(of.q) == 3:
            keys, queries = of.k[0] // max(1, of.bags), of.q[0] // max(1, of.bags)
        else:
            keys, queries = of.k[2], of.q[2]
        faster_method = torch_method(of.method, of.q[1] // of.k[1] * queries, keys, width, of.in_transform)
        return Plan("torch_moments" if faster_method == "moments" else "torch_stream", reason, asked=of.method)
    if triton_method(of, width) == "moments":
        return Plan("triton_moments")
    size, packed = of.dtype.itemsize, len(of.q) == 3
    all_keys = of.k[0] if packed else of.k[2]
    return plan_stream(of.device, size, width, of.values, all_keys, of.bags if packed else 1, of.largest, of.requested)


# --- torch or Triton, stream or moments ------------------------------------------------------------------------------


def why_not_triton(
    device: Device, dtype: torch.dtype, width: int, bags_and_heads: int, method: Method, in_transform: bool = False
) -> str:
    """The reason why no Triton kernel can take a call, "" where one can.

    width: of a head; bags_and_heads: number of bags times number of key heads.
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
        return f"The kernels{of_method} take heads at most {WIDEST[method]} wide, and q's are {width}"
    if bags_and_heads > GRID_LIMIT:
        return f"The kernels take at most {GRID_LIMIT} bags times key heads, and there are {bags_and_heads}"
    if in_transform:
        return "The kernels support neither forward mode nor torch.func transforms"
    return ""


def triton_method(of: Question, width: int) -> Literal["stream", "moments"]:
    """The method that Triton's kernels take: for "auto" the one that is faster by the measured costs.

    Of packed bags the mean size decides, so that it does not change with the largest of a batch.
    """
    if of.method != "auto":
        return of.method
    if width > WIDEST["moments"]:
        return "stream"
    q, k, packed = of.q, of.k, len(of.q) == 3
    queries, keys = (q[0] / of.bags, k[0] / of.bags) if packed else (q[2], k[2])
    return faster(of.dtype.itemsize, width, of.bags, q[1], k[1], queries, keys, of.gradients, packed)


def torch_method(
    method: Method, queries: int, keys: int, width: int, in_transform: bool
) -> Literal["stream", "moments"]:
    """The method that torch takes: for "auto" the one with less work, (N + M) E^2 for moments and N M E for the stream.

    queries: N, of all heads that share a key head; keys: M; width: E. Sizes that torch.export leaves open cannot be
    compared; then moments, whose time and memory are linear in any size.
    """
    if method != "auto":
        return method
    if isinstance(queries, torch.SymInt) or isinstance(keys, torch.SymInt):
        return "moments"
    return "moments" if queries * keys > TORCH_MOMENT_COST[in_transform] * (queries + keys) * width else "stream"


# --- which kernel of Triton's stream ---------------------------------------------------------------------------------


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
    """The kernels that stream a call. Raises BackendUnavailable where the one that `only` asks for cannot take it.

    size: bytes of a number; width, values: of a head and of its values; keys: of a bag, or of all packed bags; bags:
    packed ones, 1 where bags are dense; largest: as in Question.
    """
    width, values = width + -width % ROW_STEP, values + -values % ROW_STEP
    table = tables.SMALL_BAGS.get((size, padded_width(width)))
    small = table is not None and largest is not None
    small = small and largest[0] <= table.keys and largest[1] <= tables.MOST_QUERIES  # type: ignore[index,union-attr]
    hopper = (size, width) in tables.HOPPER and has_hopper(device)
    if requested in ("triton_small_bags", "triton_stream", "triton_stream_hopper"):
        if not {"triton_stream": True, "triton_small_bags": small, "triton_stream_hopper": hopper}[requested]:
            raise BackendUnavailable(f"only({requested!r}) asks for a kernel that cannot take this call.")
        kernel = requested
    elif small:
        kernel = "triton_small_bags"
    else:
        hopper = hopper and keys // max(1, bags) >= FEWEST_HOPPER_KEYS
        kernel = "triton_stream_hopper" if hopper else "triton_stream"
    from_moments = kernel != "triton_small_bags" and dq_from_moments(padded_width(width), keys)
    return Plan(kernel, "", from_moments)


def plan_kernels(call: AttentionCall, method: Method) -> Plan:
    """The plan of a call that is in the kernels' layout already, by one method: for compiled code, and for tuning."""
    if method == "moments":
        return Plan("triton_moments")
    device, size, width, values = device_facts(call.q.device), call.q.element_size(), call.q.shape[3], call.v.shape[3]
    bags = call.bags if call.packed else 1
    return plan_stream(device, size, width, values, call.k.shape[2], bags, largest_bag(call), _REQUESTED.get())


def largest_bag(call: AttentionCall) -> tuple[int, int] | None:
    """Numbers of keys and of queries of the largest bag; None while a CUDA graph is recorded, as the host cannot read
    offsets then."""
    return _largest(call.q, call.k, call.offsets, call.query_offsets)


def _largest(q: Tensor, k: Tensor, offsets: Tensor | None, query_offsets: Tensor | None) -> tuple[int, int] | None:
    if offsets is None or query_offsets is None:
        return k.shape[-2], q.shape[-2]
    if offsets.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    return largest_bag_size(offsets), largest_bag_size(query_offsets)


def has_hopper(device: Device) -> bool:
    return device.kind == "cuda" and device.capability == (9, 0) and device.triton.startswith(HOPPER_TRITON)


def hopper_block_sizes(call: AttentionCall, tiles: Tiles) -> tuple[BlockSizes, SplitKeys]:
    """The block sizes with which the Hopper kernel is fastest, and how it splits keys then. tiles: block sizes that are
    taken, by the name of a kernel, "hopper" among them."""
    q, bags = call.q, max(1, call.bags) if call.packed else 1
    keys = call.k.shape[2] // bags
    own = tiles.get("hopper")
    found: list[tuple[BlockSizes, SplitKeys]] = []
    table = tables.tiles_of("hopper", q.element_size(), q.shape[-1], call.value_width)
    for sizes in [own] if isinstance(own, BlockSizes) else table:
        # Packed bags differ in their numbers of keys: the mean is taken, and their keys are never split.
        count = q.shape[2] // sizes.own + bags if call.packed else -(-q.shape[2] // sizes.own) * q.shape[0]
        most = 1 if call.packed else MOST_SPLITS
        found.append((sizes, SplitKeys.of(count * q.shape[1], keys, sizes, multiprocessor_count(q.device), most)))
    return min(found, key=lambda pair: pair[1].cost)


def dq_from_moments(width: int, keys: int) -> bool:
    """Whether the stream's backward gets dq from the keys' moments because that is less work.

    width: of a head, padded; keys: of a bag, or of all bags together where they are packed.
    """
    return width <= WIDEST["moments"] and keys > MOMENT_KEYS_PER_WIDTH * width


def _may_be_triton(backend: Backend, rows: Tensor) -> bool:
    if backend not in ("auto", "triton", "torch"):
        raise ValueError(f"backend must be auto, triton or torch, not {backend!r}.")
    return backend == "triton" or (backend == "auto" and rows.is_cuda)


def choose_edge_sums(q: Tensor, sums: torch.dtype, backend: Backend) -> Literal["triton", "torch"]:
    """The backend that adds the weights of a call to edge sums; sums: dtype of the sums.

    Raises BackendUnavailable where backend="triton" cannot run, and ValueError for an unknown backend.
    """
    if not _may_be_triton(backend, q):
        return "torch"
    if sums == torch.float32:
        reason = why_not_triton(device_facts(q.device), q.dtype, q.shape[-1], 1, "stream", transformed())
    else:
        reason = f"The kernel's sums are float32, and these sums are {sums}"
    if reason and backend == "triton":
        raise BackendUnavailable(f'{reason}: use backend="auto" or "torch".')
    return "torch" if reason else "triton"


def choose_for_tables(tensors: Sequence[Tensor], bags: int = 0) -> Literal["triton", "torch"]:
    """What computes with tables of scores, the first of the tensors: kernels that read them once, or torch. bags: the
    most of one table. Whoever calls it also asks whether the kernels are right here (operators.verify)."""
    scores, *_ = tensors
    if not scores.is_cuda or bags > MOST_BAGS or not scores.numel() or not has_values(scores):
        return "torch"
    if any(each.dtype != torch.float32 for each in tensors):
        return "torch"
    reason = why_not_triton(device_facts(scores.device), torch.float32, 1, 1, "auto", transformed())
    return "torch" if reason else "triton"


def room_for_bags(most: int) -> int:
    """Bags of a tile of the kernels of tables of scores: a power of 2, with room for the largest group and, where a
    forward has slopes, one more; a product has 16."""
    return max(16, 1 << (most - 1).bit_length())


def choose_fold(
    backend: Backend, kernel: FoldKernel, rows: Tensor, widths: Sequence[int] = (), narrow: Sequence[int] = ()
) -> Literal["triton", "torch"]:
    """What computes a layer of flashsign.layers: kernels of triton.folds, or torch in slices, anywhere.

    rows: the layer's input; widths: sizes of the last axes of all matrices; narrow: those of rows that a tile holds
    whole, limited by WIDEST_FOLD. Raises BackendUnavailable where backend="triton" cannot run, and ValueError for an
    unknown backend.
    """
    if not _may_be_triton(backend, rows):
        return "torch"
    reason = why_no_fold_kernel(kernel, rows, widths, narrow)
    if reason and backend == "triton":
        raise BackendUnavailable(f'{reason}: use backend="auto" or "torch".')
    if not reason and backend == "auto" and kernel == "mlp":
        # The kernel adds the gradients of rows in any order.
        return "torch" if torch.are_deterministic_algorithms_enabled() else "triton"
    return "torch" if reason else "triton"


def why_no_fold_kernel(kernel: FoldKernel, rows: Tensor, widths: Sequence[int], narrow: Sequence[int]) -> str:
    """The reason why the kernels of triton.folds cannot take a call, "" where they can. Arguments: see choose_fold."""
    if torch.compiler.is_compiling():
        return "torch.compile does not see the folds' kernels"
    reason = why_not_triton(device_facts(rows.device), rows.dtype, 1, 1, "auto", transformed())
    if reason:
        return reason
    if not rows.numel() or 0 in widths:
        return "There is nothing to compute"
    step = 16 // rows.element_size()
    if any(width % step for width in widths):
        return f"Rows of the kernels' matrices are multiples of 16 bytes, and these have widths of {list(widths)}"
    most = WIDEST_FOLD.get(kernel)
    if most is not None and max(narrow, default=0) > most:
        return f"The kernel's tiles are at most {most} wide, and these would be {max(narrow)}"
    return ""
