"""Every kernel once, on small bags with ragged ends: what to put under a sanitizer.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONPATH=.:kernels
    compute-sanitizer --tool memcheck python benchmarks/every_kernel.py         # and --tool racecheck

All kinds, or those of KINDS whose numbers are given. Compiling is most of the time, and a sanitizer slows it: run once
without, a process a kind, and Triton keeps what was compiled. Without torch's cache every tensor is an allocation of
its own, so that a step over its end is seen.
"""

from __future__ import annotations

import sys

import torch

from flashsign.triton import small_bags
from flashsign.triton.common.tile_assignment import TileAssignment
from flashsign.triton.moments import calls as moments
from flashsign.triton.streaming import calls as stream
from flashsign.triton.streaming.scaled_keys import ScaledKeys
from flashsign.tuning.split_keys import SplitKeys
from flashsign.tuning.tables import HOPPER

KINDS = ((torch.float16, 128), (torch.bfloat16, 64), (torch.float16, 48), (torch.float32, 32))


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def both_ways(q, k, v, m, grad, offsets, query_offsets) -> None:
    """Forward, and backward with dq from the stream and from moments."""
    o, inverse = stream.forward(q, k, v, m, offsets, query_offsets, 1e-6)
    for dq_by_moments in (False, True):
        stream.backward(grad, q, k, v, m, o, inverse, offsets, query_offsets, 1e-6, moments=dq_by_moments)
    for sizes in HOPPER.get((q.element_size(), q.shape[-1]), []) if stream.hopper is not None else []:
        tiles = TileAssignment.of(q.shape[2], q.shape[0], sizes.own, query_offsets).grid(q.shape[1])[0]
        for split_tiles in (0, *([tiles // 2] if offsets is None else [])):
            keys, out = ScaledKeys.of(k, m, offsets), (torch.empty_like(q), torch.empty_like(inverse))
            plan = SplitKeys(tiles - split_tiles, split_tiles, 2 if split_tiles else 1, 0.0)
            stream.hopper.forward(q, keys, v, m, offsets, query_offsets, 1e-6, sizes, plan, *out)


def small(q, k, v, m, grad, *cut) -> None:
    o, inverse = small_bags.forward(q, k, v, m, *cut, 1e-6)
    small_bags.backward(grad, q, k, v, m, o, inverse, *cut, 1e-6)


def by_moments(q, k, v, m, grad, *cut) -> None:
    o, *kept = moments.forward(q, k, v, m, *cut, 1e-6)
    moments.backward(grad, q, k, v, m, o, *kept, *cut, 1e-6)


def make_ill_conditioned(q, k) -> None:
    """Keys of condition 1000, and a third of the queries along directions that they hardly have: for the high-precision
    path and the lists of ill-conditioned rows."""
    width = q.shape[-1]
    basis = torch.linalg.qr(torch.randn(width, width, device="cuda"))[0]
    sizes = torch.logspace(0, -3, width, device="cuda")
    k.copy_(k.float() * sizes @ basis)
    q[:, :, ::3] = (q[:, :, ::3].float() / sizes / 200 @ basis).to(q.dtype)


def main(kinds: list[int]) -> None:
    torch.manual_seed(0)
    for dtype, width in [KINDS[kind] for kind in kinds]:
        queries, keys = 333, 301
        m = torch.rand(1, 1, keys, device="cuda")
        m[..., 5:9] = 0
        rows = [normal(1, 4, queries, width, dtype=dtype), *(normal(1, 2, keys, width, dtype=dtype) for _ in range(2))]
        grad = normal(1, 4, queries, width, dtype=dtype)
        both_ways(*rows, m, grad, None, None)
        rows[2][:, :, 6] = torch.nan  # an absent key: NaN repair
        both_ways(*rows, m, grad, None, None)
        cuts = [torch.tensor(cut, device="cuda") for cut in ([0, 100, 100, 301], [0, 7, 200, 333])]
        both_ways(*rows, m, grad, *cuts)
        rows[2][:, :, 6] = 0
        by_moments(*rows, m, grad, None, None)
        make_ill_conditioned(rows[0], rows[1])
        by_moments(*rows, m, grad, None, None)
        by_moments(*rows, m, grad, *cuts)
        if width <= 64:
            few = [x[:, :, :61] for x in rows]
            small(*few, m[..., :61], grad[:, :, :61], None, None)
            cuts = [torch.tensor(cut, device="cuda") for cut in ([0, 33, 33, 61], [0, 7, 40, 61])]
            small(*few, m[..., :61], grad[:, :, :61], *cuts)
        torch.cuda.synchronize()
        print(f"{dtype}, heads of {width}: done", flush=True)
    print("every kernel ran")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or list(range(len(KINDS))))
