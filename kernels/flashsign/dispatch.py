"""Every decision which path a call takes: torch or the GPU's kernels, the stream or moments, and which kernel of each.

What runs for q in float16 with 3000 genes?

    h200 = Device("cuda", capability=(9, 0), triton="3.6.0")
    plan((1, 8, 3000, 64), dtype=torch.float16, device=h200).kernel        # 'triton_moments'
    plan((1, 8, 3000, 64), dtype=torch.float16).kernel                     # on this machine

Decisions are made in this order, each by a function of shapes, dtypes, flags and facts about a device:

    1. torch or Triton          why_not_triton: dtype, head width, device, transforms
    2. the stream or moments    triton_method: measured times (flashsign.tuning.costs); torch_method: operations
    3. the stream's kernel      for small bags, for Hopper or the plain one: fits_small_bags, suits_hopper, has_hopper

Layers that are folds have one decision, torch in slices or the kernels of triton.folds: choose_fold.

Calls take these functions by way of choose() and stream_kernel(), plan() answers for shapes alone, also for a device
that is not present, and only() asks for one path. Block sizes: flashsign.tuning.choose.
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
from numbers import Integral
from typing import Literal

import torch
from torch import Tensor

from flashsign.eager.transforms import transformed
from flashsign.errors import BackendUnavailable, ShapeMismatch
from flashsign.tuning import tables
from flashsign.tuning.block_sizes import BlockSizes
from flashsign.tuning.costs import faster
from flashsign.tuning.device import capability, multiprocessor_count
from flashsign.tuning.head_width import ROW_STEP, padded_width
from flashsign.tuning.split_keys import MOST_SPLITS, SplitKeys
from flashsign.validation import largest_bag_size

Backend = Literal["auto", "triton", "torch"]
Method = Literal["auto", "stream", "moments"]
FoldBackend = Literal["auto", "triton", "torch"]
FoldKernel = Literal["logits", "mlp", "rms_norm", "attention"]
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
"""The backend and the method of every path. In `triton_small_bags` one program does a whole bag; the forward kernel of
`triton_stream_hopper` is written for Hopper; the paths of gene parallelism are for bags whose genes are split over
processes."""

WIDEST = {"stream": 256, "moments": 128, "auto": 256}
"""The widest heads that the Triton kernels of a method take."""
WIDEST_FOLD = {"mlp": 256, "rms_norm": 8192, "attention": 128}
"""The widest rows of which a fold's kernel holds whole tiles; logits are sums over tiles of any number of features."""
GRID_LIMIT = 65535
"""The most programs on the second and third axis of a grid."""
FEWEST_HOPPER_KEYS = 2048
"""With fewer keys the plain kernel is faster: each program of the one for Hopper takes a whole multiprocessor."""
MOMENT_KEYS_PER_WIDTH = 8
"""dq comes from moments where keys > this * width: two products of width E instead of three with every key."""
HOPPER_TRITON = "3.6."
"""The release of Triton with which the Hopper kernel was seen working: Gluon changes from release to release."""
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
    """The facts about a device of this machine."""
    if device.type == "cuda":
        return Device("cuda", capability(device), _triton_version())
    return Device(device.type, triton=_triton_version() if INTERPRETED else "", interpreted=INTERPRETED)


def _triton_version() -> str:
    if not HAS_TRITON:
        return ""
    import triton

    return str(triton.__version__)


# While torch.compile traces, the facts about a device cannot be looked up; calls are planned for one that has kernels.
_TRACED_CUDA = Device("cuda", (8, 0), triton="traced" if HAS_TRITON else "")
_TRACED_CPU = Device("cpu", triton="traced" if HAS_TRITON else "", interpreted=INTERPRETED)


# --- the plan of a call, and a request for one path ------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What runs for a call.

    kernel: a name in KERNELS; reason: why it is not a Triton kernel, "" where it is one or backend="torch" was given;
    dq_from_moments: whether the backward of a Triton stream gets dq from the keys' moments.
    """

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

    queries, keys: the shapes of q and k. Dense: [C, H, N, E] and [C, K, M, E] (default: that of q). Packed: [T, H, E]
    and [S, K, E], with `bags`, the number of bags, and `largest`, the numbers of keys and of queries of the largest bag
    (default: all bags have one size). In torch a packed call chooses a method for every group of similar bags, and the
    plan is that of bags of the largest size.
    gradients: whether a backward will follow; gene_parallel: whether the call has a group; in_transform: whether it is
    inside forward mode or a torch.func transform; device: facts, or a device of this machine (default: the current CUDA
    device where there is one, else the CPU).
    Raises BackendUnavailable where the call would, ShapeMismatch for shapes that are none, ValueError.
    """
    q, k = tuple(queries), tuple(queries if keys is None else keys)
    axes = 4 if bags is None else 3
    for name, shape in (("queries", q), ("keys", k)):
        if len(shape) != axes or not all(isinstance(size, Integral) and size >= 0 for size in shape):
            form = "[C, heads, rows, E]" if bags is None else "[rows, heads, E]"
            raise ShapeMismatch(f"{name} must be a shape {form} of whole numbers; found {list(shape)}.")
    if method not in ("auto", "stream", "moments"):
        raise ValueError(f"method must be auto, stream or moments, not {method!r}.")
    if backend not in ("auto", "triton", "torch"):
        raise ValueError(f"backend must be auto, triton or torch, not {backend!r}.")
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    known = device if isinstance(device, Device) else device_facts(device)
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
        faster_method = torch_method(method, q[1] // k[1] * largest[1], largest[0], width, in_transform)
        return Plan("torch_moments" if faster_method == "moments" else "torch_stream", reason)
    if chosen_method == "moments":
        return Plan("triton_moments")
    width += -width % ROW_STEP
    all_keys = k[0] if bags is not None else k[2]
    if fits_small_bags(dtype.itemsize, width, largest):
        return Plan("triton_small_bags")
    mean_keys = all_keys if bags is None else all_keys // max(1, bags)
    hopper = suits_hopper(dtype.itemsize, width, mean_keys) and has_hopper(known)
    from_moments = dq_from_moments(padded_width(width), all_keys)
    return Plan("triton_stream_hopper" if hopper else "triton_stream", "", from_moments)


_REQUESTED: ContextVar[Kernel | None] = ContextVar("flashsign_only", default=None)


@contextmanager
def only(kernel: Kernel) -> Iterator[None]:
    """Within this context, calls take one path, also where another is faster: for tests and measurements.

    It decides only what a call leaves open: method=, backend= and group= of the call come first. A call that the path
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


def requested_kernel() -> Kernel | None:
    """The path that `only` asks for, None outside of it."""
    return _REQUESTED.get()


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
    """The backend of a call, and its method. With torch the method is returned unchanged: see torch_method.

    Tensors as in spherical_attention; bags: how many there are. Raises BackendUnavailable where backend="triton" cannot
    run.
    """
    tracing = torch.compiler.is_compiling()
    requested = None if tracing else _REQUESTED.get()
    if requested is not None:
        method, backend = _as_requested(requested, method, backend, gene_parallel)
    gradients = torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (multiplicity is not None and multiplicity.requires_grad)
    )
    device = (_TRACED_CUDA if q.is_cuda else _TRACED_CPU) if tracing else device_facts(q.device)
    in_transform = not tracing and transformed()
    chosen, method, _ = _choose(
        device, q.dtype, q.shape, k.shape, bags, method, backend, gradients, gene_parallel, in_transform
    )
    return chosen, method


def _as_requested(requested: Kernel, method: Method, backend: Backend, gene_parallel: bool) -> tuple[Method, Backend]:
    """Method and backend of a call within `only`: the requested ones, unless its own arguments say otherwise."""
    of_backend, of_method = KERNELS[requested]
    agrees = backend in ("auto", of_backend) and method in ("auto", of_method)
    return (of_method, of_backend) if agrees and gene_parallel == requested.endswith("parallel") else (method, backend)


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
    """Backend, method (with torch: unchanged), and the reason why it is not Triton; q, k: shapes."""
    if backend == "torch":
        return "torch", method, ""
    of = "moments" if gene_parallel else method
    reason = why_not_triton(device, dtype, q[-1], bags * k[1], of, in_transform)
    if not reason and gene_parallel and dtype.itemsize != 2:
        reason = f"With genes split over processes the kernels take 16-bit numbers only, not {dtype}"
    if reason and backend == "triton":
        raise BackendUnavailable(f'{reason}: use backend="auto" or "torch".')
    if not reason and backend == "auto" and device.kind != "cuda":
        reason = 'Triton\'s interpreter is slow: ask for backend="triton"'
    # All ranks must take the same path, so it must not depend on numbers of genes, which differ between ranks.
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


def triton_method(
    method: Method, size: int, q: Sequence[int], k: Sequence[int], bags: int, gradients: bool
) -> Literal["stream", "moments"]:
    """The method that Triton's kernels take: for "auto" the one that is faster by the measured costs.

    size: bytes of a number; q, k: shapes. Of packed bags the mean size decides: reading the size of each would
    synchronise with the GPU.
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
    """The method that torch takes: for "auto" the one with less work, (N + M) E^2 for moments and N M E for the stream.

    queries: N, of all heads that share a key head; keys: M; width: E.
    """
    if method != "auto":
        return method
    return "moments" if queries * keys > TORCH_MOMENT_COST[in_transform] * (queries + keys) * width else "stream"


# --- which kernel of Triton's stream ---------------------------------------------------------------------------------


def stream_kernel(q: Tensor, k: Tensor, offsets: Tensor | None, query_offsets: Tensor | None) -> Kernel:
    """The kernel that streams a call in the kernels' layout: q [C', H, N, E], k [C', K, M, E] (operators.layout).

    Raises BackendUnavailable where the one that `only` asks for cannot take it.
    """
    size, width = q.element_size(), q.shape[-1]
    requested = _REQUESTED.get()
    small = fits_small_bags(size, width, largest_bag(q, k, offsets, query_offsets))
    if requested in ("triton_small_bags", "triton_stream", "triton_stream_hopper"):
        hopper = (size, width) in tables.HOPPER and q.is_cuda and has_hopper(device_facts(q.device))
        able = {"triton_stream": True, "triton_small_bags": small, "triton_stream_hopper": hopper}
        if not able[requested]:
            raise BackendUnavailable(
                f"only({requested!r}) asks for a kernel that cannot take q {list(q.shape)} of {q.dtype} on {q.device}."
            )
        return requested
    if small:
        return "triton_small_bags"
    keys = k.shape[2] if offsets is None else k.shape[2] // max(1, len(offsets) - 1)
    if suits_hopper(size, width, keys) and q.is_cuda and has_hopper(device_facts(q.device)):
        return "triton_stream_hopper"
    return "triton_stream"


def fits_small_bags(size: int, width: int, largest: tuple[int, int] | None) -> bool:
    """Whether one program can do a whole bag.

    size: bytes of a number; width: of a head; largest: keys and queries of the largest bag (None: not known).
    """
    table = tables.SMALL_BAGS.get((size, padded_width(width)))
    return table is not None and largest is not None and largest[0] <= table.keys and largest[1] <= tables.MOST_QUERIES


def largest_bag(q: Tensor, k: Tensor, offsets: Tensor | None, query_offsets: Tensor | None) -> tuple[int, int] | None:
    """Numbers of keys and of queries of the largest bag; None while a CUDA graph is recorded, as the host cannot read
    offsets then."""
    if offsets is None or query_offsets is None:
        return k.shape[2], q.shape[2]
    if offsets.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    return largest_bag_size(offsets), largest_bag_size(query_offsets)


def suits_hopper(size: int, width: int, keys: int) -> bool:
    """Whether the Hopper kernel takes numbers of `size` bytes and heads of `width`, and is faster for bags of `keys`
    keys (packed: on average)."""
    return keys >= FEWEST_HOPPER_KEYS and (size, width) in tables.HOPPER


def has_hopper(device: Device) -> bool:
    """Whether the Hopper kernel runs on a device."""
    return device.kind == "cuda" and device.capability == (9, 0) and device.triton.startswith(HOPPER_TRITON)


def hopper_block_sizes(q: Tensor, k: Tensor, query_offsets: Tensor | None) -> tuple[BlockSizes, SplitKeys]:
    """The block sizes with which the Hopper kernel is fastest, and how it splits keys then.

    q, k and query_offsets in the kernels' layout (operators.layout).
    """
    bags = 1 if query_offsets is None else max(1, len(query_offsets) - 1)
    keys = k.shape[2] // bags
    best = None
    for sizes in tables.HOPPER[q.element_size(), q.shape[-1]]:
        # Packed bags differ in their numbers of keys: the mean is taken, and their keys are never split.
        tiles = -(-q.shape[2] // sizes.own) * q.shape[0] if query_offsets is None else q.shape[2] // sizes.own + bags
        most = MOST_SPLITS if query_offsets is None else 1
        splits = SplitKeys.of(tiles * q.shape[1], keys, sizes, multiprocessor_count(q.device), most)
        if best is None or splits.cost < best[1].cost:
            best = sizes, splits
    assert best is not None
    return best


def dq_from_moments(width: int, keys: int) -> bool:
    """Whether the stream's backward gets dq from the keys' moments because that is less work.

    width: of a head, padded; keys: of a bag, or of all bags together where they are packed.
    """
    return width <= WIDEST["moments"] and keys > MOMENT_KEYS_PER_WIDTH * width


# --- edge sums -------------------------------------------------------------------------------------------------------


def choose_edge_sums(q: Tensor, sums: torch.dtype, backend: Backend) -> Literal["triton", "torch"]:
    """The backend that adds the weights of a call to edge sums; sums: dtype of the sums.

    Raises BackendUnavailable where backend="triton" cannot run, and ValueError for an unknown backend.
    """
    if backend not in ("auto", "triton", "torch"):
        raise ValueError(f"backend must be auto, triton or torch, not {backend!r}.")
    if backend == "torch" or (backend == "auto" and not q.is_cuda):
        return "torch"
    if sums == torch.float32:
        reason = why_not_triton(device_facts(q.device), q.dtype, q.shape[-1], 1, "stream", transformed())
    else:
        reason = f"The kernel's sums are float32, and these sums are {sums}"
    if reason and backend == "triton":
        raise BackendUnavailable(f'{reason}: use backend="auto" or "torch".')
    return "torch" if reason else "triton"


def choose_fold(
    backend: FoldBackend, kernel: FoldKernel, rows: Tensor, widths: Sequence[int] = (), narrow: Sequence[int] = ()
) -> Literal["triton", "torch"]:
    """What computes a layer of flashsign.layers: kernels of triton.folds, or torch in slices, anywhere.

    rows: the layer's input; widths: sizes of the last axes of all matrices; narrow: those of rows that a tile holds
    whole, limited by WIDEST_FOLD. Raises BackendUnavailable where backend="triton" cannot run, and ValueError for an
    unknown backend.
    """
    if backend not in ("auto", "triton", "torch"):
        raise ValueError(f"backend must be auto, triton or torch, not {backend!r}.")
    if backend == "torch" or (backend == "auto" and not rows.is_cuda):
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
