"""The launches that a kernel is a part of, and whether their results are right.

Letters: C cells, H query heads, K key heads, N queries, M keys, E head width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from flashsign.dispatch import WIDEST
from flashsign.tuning.accuracy import TENSORS, Bag, Verdict
from flashsign.tuning.choose import choose_block_sizes
from flashsign.tuning.head_width import padded_width

FORWARD = {"stream": ("forward",), "moments": ("moment_keys", "moment_queries")}
BACKWARD = {
    "stream": ("key_gradients", "query_gradient"),
    "moments": ("moment_query_sums", "moment_query_gradients", "moment_key_gradients"),
}
EPS = 1e-6


def forward(
    method: str, q: Tensor, k: Tensor, v: Tensor, m: Tensor, offsets: Tensor | None = None
) -> tuple[Tensor, ...]:
    """The output and what the backward takes of it, in the kernels' layout. The stream is its plain kernel, never those
    for small bags or for Hopper."""
    from flashsign.triton.moments import calls as moments
    from flashsign.triton.streaming import calls as stream

    if method == "moments":
        return moments.forward(q, k, v, m, offsets, offsets, EPS)
    return stream.forward(
        q, k, v, m, offsets, offsets, EPS, choose_block_sizes("forward", q, padded_width(q.shape[-1]))
    )


def backward(
    method: str, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, m: Tensor, saved: Sequence[Tensor],
    offsets: Tensor | None = None, dq_by_moments: bool | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """dq, dk, dv, dm in the kernels' layout; saved: what forward returned."""
    from flashsign.triton.moments import calls as moments
    from flashsign.triton.streaming import calls as stream

    if method == "moments":
        o, inverse, sums, totals = saved
        return moments.backward(grad, q, k, v, m, o, inverse, sums, totals, offsets, offsets, EPS)
    o, inverse = saved
    width = padded_width(q.shape[-1])
    blocks = choose_block_sizes("key_gradients", k, width), choose_block_sizes("query_gradient", q, width)
    return stream.backward(grad, q, k, v, m, o, inverse, offsets, offsets, EPS, *blocks, dq_by_moments)


def verdicts(method: str, name: str, bag: Bag, packed: bool) -> Iterator[Verdict]:
    """Verdicts on all results of the launches that kernel `name` is a part of; packed: the bag's two cells packed."""
    rows, offsets = [bag.q, bag.k, bag.v, bag.m[:, None], bag.grad], None
    if packed:
        rows = [x.transpose(0, 1).flatten(1, 2)[None] for x in rows]
        offsets = torch.arange(3, device=bag.q.device) * bag.genes
    q, k, v, m, grad = rows

    def judged(names: Sequence[str], found: Sequence[Tensor]) -> Iterator[Verdict]:
        if packed:
            found = [x[0].reshape(x.shape[1], 2, bag.genes, *x.shape[3:]).transpose(0, 1) for x in found]
        each = dict(zip(names, found, strict=True))
        yield from bag.judge({name: x.sum(1) if name == "dm" else x for name, x in each.items()}).values()

    saved = forward(method, q, k, v, m, offsets)
    yield from judged(TENSORS[:1], saved[:1])
    if name in BACKWARD[method]:
        # Both kernels of dq, by the stream and by moments, are launched with these block sizes.
        both = name == "query_gradient" and padded_width(q.shape[-1]) <= WIDEST["moments"]
        for dq_by_moments in (False, True) if both else (None,):
            yield from judged(TENSORS[1:], backward(method, grad, q, k, v, m, saved, offsets, dq_by_moments))
