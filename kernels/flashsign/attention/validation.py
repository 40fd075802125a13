"""The checks of a call before anything is computed. Tensors that do not fit together raise an error
of one sentence.

Letters: C cells (bags), H query heads, K key heads, N queries, M keys, E head width, V value width;
packed: T queries and S keys of all bags together.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from flashsign.errors import ShapeMismatch
from flashsign.tensor_cache import cached

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def require_tensors(**arguments: object) -> None:
    """Raise ShapeMismatch for an argument that is no tensor, such as a list or an array of NumPy.

    Those that are not called q, k or v may be None.
    """
    for name, found in arguments.items():
        if isinstance(found, Tensor) or (found is None and name not in ("q", "k", "v")):
            continue
        if found is None:
            raise ShapeMismatch(f"{name} must be a tensor; found None.")
        kind = (
            type(found).__name__
            if type(found).__module__ != "numpy"
            else f"numpy.{type(found).__name__}"
        )
        device = "" if name == "q" else ", device=q.device"
        raise ShapeMismatch(
            f"{name} must be a tensor; found {kind}: pass torch.as_tensor({name}{device})."
        )


def check_tensors(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor | None,
    packed: bool,
    *,
    any_value_width: bool = False,
) -> None:
    """Raise ShapeMismatch, with what was found, unless the tensors fit together.

    any_value_width: whether V may differ from E.

    Dense: q [C, H, N, E], k [C, K, M, E], v [C, K, M, V], multiplicity [C, M] or [C, K, M].
    Packed: q [T, H, E], k [S, K, E], v [S, K, V], multiplicity [S] or [S, K].
    """
    require_tensors(q=q, k=k, v=v, multiplicity=multiplicity)
    form, ndim = ("packed", 3) if packed else ("dense", 4)

    def found() -> str:
        return f"found q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"

    if q.ndim != ndim or k.ndim != ndim:
        expected = (
            "q [T, H, E] and k, v [S, K, E]" if packed else "q [C, H, N, E] and k, v [C, K, M, E]"
        )
        hint = "" if packed else " For packed bags, pass offsets."
        raise ShapeMismatch(f"A {form} call takes {expected}; {found()}.{hint}")
    if any_value_width and k.shape[:-1] != v.shape[:-1]:
        raise ShapeMismatch(f"k and v must have the same shape, but for their widths; {found()}.")
    if not any_value_width and k.shape != v.shape:
        raise ShapeMismatch(f"k and v must have the same shape; {found()}.")
    if q.shape[-1] != k.shape[-1]:
        raise ShapeMismatch(f"q and k must have the same head width; {found()}.")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ShapeMismatch(
            f"The number of query heads must be a multiple of the number of key heads; {found()}."
        )
    if not packed and q.shape[0] != k.shape[0]:
        raise ShapeMismatch(f"q and k must have the same number of cells; {found()}.")
    if not (q.dtype == k.dtype == v.dtype and q.dtype in DTYPES):
        raise ShapeMismatch(
            "q, k and v must share one dtype, float16, bfloat16, float32 or float64; "
            f"found {q.dtype}, {k.dtype}, {v.dtype}."
        )
    if not (q.device == k.device == v.device):
        raise ShapeMismatch(
            f"q, k and v must be on the same device; found {q.device}, {k.device}, {v.device}."
        )
    if multiplicity is None:
        return
    per_key = k.shape[:1] if packed else (k.shape[0], k.shape[2])
    per_key_and_head = k.shape[:-1]
    if multiplicity.shape not in (per_key, per_key_and_head):
        raise ShapeMismatch(
            f"multiplicity must have shape {list(per_key)} or {list(per_key_and_head)} for k "
            f"{list(k.shape)}; found {list(multiplicity.shape)}."
        )
    if multiplicity.is_complex():
        raise ShapeMismatch(f"multiplicity must be real numbers; found {multiplicity.dtype}.")
    if multiplicity.device != k.device:
        raise ShapeMismatch(
            f"multiplicity must be on k's device {k.device}; found {multiplicity.device}."
        )
    check_values("multiplicity", multiplicity)


def is_whole(numbers: Tensor) -> bool:
    """Return whether a tensor holds integers, and not true and false."""
    return not (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool)


def is_plain(values: Tensor) -> bool:
    """Return whether a tensor's values can be read.

    It is of torch's own class, and outside of torch.func transforms.
    """
    return type(values) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(values)


def has_values(x: Tensor) -> bool:
    """Return whether a tensor holds numbers that Python can look at.

    One on the meta device or in FakeTensorMode has none, and none has any while torch.compile or
    torch.export traces.
    """
    return not (torch.compiler.is_compiling() or x.is_meta or isinstance(x, FakeTensor))


def check_values(name: str, values: Tensor) -> None:
    """Raise ShapeMismatch for multiplicities below 0, infinite or NaN, where they are data on a
    CPU.

    Values on a GPU are never read, as that waits for the device: there such a multiplicity turns
    signs, or makes NaN. One that requires a gradient is not read either: it is varied, by finite
    differences to below 0.
    """
    if torch.compiler.is_compiling() or values.device.type != "cpu" or values.requires_grad:
        return
    if not is_plain(values) or not values.dtype.is_signed or not values.numel():
        # torch has no aminmax of unsigned integers, which are right as they are; bool is unsigned,
        # too
        return
    # Detached from tangents too: torch 2.11 has no forward derivative of aminmax.
    least, most = (float(x) for x in values.detach().aminmax())
    if not least >= 0 or most == float("inf"):
        raise ShapeMismatch(
            f"{name} must hold finite numbers of at least 0, as counts are; found {least:g} to "
            f"{most:g}."
        )


def check_packing(
    q: Tensor, k: Tensor, offsets: Tensor | None, query_offsets: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return offsets and query_offsets [C + 1], contiguous.

    query_offsets are offsets by default; None, None for dense calls.

    Raises ShapeMismatch unless both describe the same number of bags and could cut the packed rows
    of k and q.
    """
    require_tensors(q=q, k=k, offsets=offsets, query_offsets=query_offsets)
    if offsets is None:
        if query_offsets is not None:
            raise ShapeMismatch(
                "query_offsets came without offsets: pass the offsets of the packed keys too."
            )
        return None, None
    # len() would fix a size that torch.export leaves open
    if query_offsets is None and q.shape[0] != k.shape[0]:
        raise ShapeMismatch(
            f"q has {len(q)} packed rows and k {len(k)}, which the same offsets cannot cut: pass "
            "query_offsets, too."
        )
    query_offsets = offsets if query_offsets is None else query_offsets
    check_offsets("offsets", offsets, k)
    check_offsets("query_offsets", query_offsets, q)
    if offsets.shape != query_offsets.shape:
        raise ShapeMismatch(
            f"offsets and query_offsets must describe the same bags; found {len(offsets) - 1} bags "
            f"and {len(query_offsets) - 1}."
        )
    return offsets.contiguous(), query_offsets.contiguous()


def check_offsets(name: str, offsets: Tensor, packed: Tensor) -> None:
    """Raise ShapeMismatch unless offsets [C + 1] have a shape, dtype and device to cut packed rows
    [T, heads, E].

    Their values are checked by check_cut, which synchronises with the GPU.
    """
    if (
        offsets.ndim != 1
        or offsets.shape[0] == 0
        or offsets.dtype not in (torch.int32, torch.int64)
    ):
        raise ShapeMismatch(
            f"{name} must be int32 or int64 of shape [C + 1]; found {offsets.dtype} "
            f"{list(offsets.shape)}."
        )
    if offsets.device != packed.device:
        raise ShapeMismatch(
            f"{name} must be on the packed rows' device {packed.device}; found {offsets.device}."
        )


def check_layer(
    h: Tensor, weight: Tensor, bias: Tensor | None, name: str = "h", of_weight: str = "weight"
) -> None:
    """Raise ShapeMismatch unless h [..., D], weight [V, D] and bias [V] fit together in shape,
    dtype and device.
    """
    found = f"{name} {list(h.shape)}, {of_weight} {list(weight.shape)}"
    if h.ndim < 2 or weight.ndim != 2 or h.shape[-1] != weight.shape[1]:
        raise ShapeMismatch(
            f"{name} must be [..., D] and {of_weight} [V, D] of the same width; found {found}."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeMismatch(f"bias must be [{len(weight)}]; found {list(bias.shape)}.")
    kinds = {(x.dtype, x.device) for x in (h, weight)}
    if bias is not None:
        # A bias may have the float32 of the sums that it is added to, beside rows and a layer of 16
        # bits.
        sums = torch.promote_types(h.dtype, torch.float32)
        kinds |= {(h.dtype if bias.dtype == sums else bias.dtype, bias.device)}
    if len(kinds) > 1 or not h.is_floating_point():
        kind = " and ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise ShapeMismatch(
            f"{name} and its layer must have one floating dtype and device; found {kind}."
        )


def check_cut(name: str, offsets: Tensor, rows: int) -> None:
    """Raise ShapeMismatch unless offsets [C + 1] rise from 0 to the number of rows.

    name: of the argument.

    Synchronises with the GPU the first time that it sees these offsets.
    """
    first, last, rising, _ = cached(offsets, "cut", lambda: _cut(offsets))
    if first != 0 or last != rows or not rising:
        fall = ""
        if not rising:
            at = int(offsets.diff().lt(0).nonzero()[0, 0])
            fall = f", and {int(offsets[at + 1])} after {int(offsets[at])} in place {at + 1}"
        raise ShapeMismatch(
            f"{name} must rise from 0 to the {rows} packed rows; found {first} to {last} over "
            f"{len(offsets) - 1} bags{fall}."
        )


def largest_bag_size(offsets: Tensor) -> int:
    """Return rows of the largest bag. Does not synchronise with the GPU if check_cut has seen these
    offsets before.
    """
    return cached(offsets, "cut", lambda: _cut(offsets))[3]


def _cut(offsets: Tensor) -> tuple[int, int, bool, int]:
    """Return the first and the last offset, whether offsets never fall, and the size of the largest
    bag.
    """
    sizes = offsets.diff()
    # An empty bag is added because aminmax refuses an empty tensor, and there may be no bags.
    fewest, most = torch.cat([sizes, sizes.new_zeros(1)]).aminmax()
    first, last, least, largest = torch.stack([offsets[0], offsets[-1], fewest, most]).tolist()
    return first, last, least >= 0, largest
