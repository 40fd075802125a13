"""Does any kernel read or write outside of its tensors?

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONPATH=.:kernels
    # compiles: minutes on an H200
    python benchmarks/every_kernel.py
    # minutes; also with --tool racecheck
    compute-sanitizer --tool memcheck python benchmarks/every_kernel.py

Runs every kernel once, on small bags, for a sanitizer. The sizes are such that tiles are partly
empty. Compiling takes most of the time, and a sanitizer slows it down: the first command compiles
without one, and Triton keeps the result. Without torch's cache of memory every tensor is an
allocation of its own, so that the sanitizer sees an access behind its end.
"""

from __future__ import annotations

import argparse

import torch

from flashsign.attention.call import AttentionCall
from flashsign.triton import small_bags
from flashsign.triton.common.layout import TileAssignment
from flashsign.triton.moments import moment_launches as moments
from flashsign.triton.streaming import stream_launches as stream
from flashsign.triton.streaming.scaled_keys import ScaledKeys
from flashsign.tuning.split_keys import SplitKeys
from flashsign.tuning.tables import HOPPER

KINDS = (
    (torch.float16, 128, 128),
    (torch.bfloat16, 64, 64),
    (torch.float16, 48, 48),
    (torch.float32, 32, 32),
    (torch.float16, 64, 16),
)


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def by_stream(q, k, v, m, grad, offsets, query_offsets) -> None:
    """The stream:
    forward by every kernel, and backward with dq from the stream and from moments.
    """
    call = AttentionCall(q, k, v, m, offsets, query_offsets, 1e-6)
    o, inverse = stream.forward(call)
    for dq_by_moments in (False, True):
        stream.backward(call, grad, o, inverse, from_moments=dq_by_moments)
    fits = stream.hopper is not None and v.shape == k.shape
    for sizes in HOPPER.get((q.element_size(), q.shape[-1]), []) if fits else []:
        tiles = TileAssignment.of(q.shape[2], q.shape[0], sizes.own, query_offsets).grid(
            q.shape[1]
        )[0]
        for split_tiles in (0, *([tiles // 2] if offsets is None else [])):
            out = torch.empty_like(q), torch.empty_like(inverse)
            plan = SplitKeys(tiles - split_tiles, split_tiles, 2 if split_tiles else 1, 0.0)
            stream.hopper.forward(call, ScaledKeys.of(call), sizes, plan, *out)


def by_small_bags(q, k, v, m, grad, *offsets) -> None:
    call = AttentionCall(q, k, v, m, *offsets, 1e-6)
    small_bags.backward(call, grad, *small_bags.forward(call))


def by_moments(q, k, v, m, grad, *offsets) -> None:
    call = AttentionCall(q, k, v, m, *offsets, 1e-6)
    moments.backward(call, grad, *moments.forward(call))


def make_ill_conditioned(q, k) -> None:
    """Changes keys and queries so that the high-precision path and the lists of ill-conditioned
    rows are used.

    The keys get condition number 1000, and a third of the queries point where the keys hardly vary.
    """
    width = q.shape[-1]
    basis = torch.linalg.qr(torch.randn(width, width, device="cuda"))[0]
    sizes = torch.logspace(0, -3, width, device="cuda")
    k.copy_(k.float() * sizes @ basis)
    q[:, :, ::3] = (q[:, :, ::3].float() / sizes / 200 @ basis).to(q.dtype)


def main(kinds: list[int]) -> None:
    torch.manual_seed(0)
    for dtype, width, values in [KINDS[kind] for kind in kinds]:
        queries, keys = 333, 301
        m = torch.rand(1, 1, keys, device="cuda")
        m[..., 5:9] = 0
        rows = [
            normal(1, 4, queries, width, dtype=dtype),
            *(normal(1, 2, keys, n, dtype=dtype) for n in (width, values)),
        ]
        grad = normal(1, 4, queries, values, dtype=dtype)
        by_stream(*rows, m, grad, None, None)
        rows[2][:, :, 6] = torch.nan  # an absent key: NaN repair
        by_stream(*rows, m, grad, None, None)
        offsets = [
            torch.tensor(bounds, device="cuda") for bounds in ([0, 100, 100, 301], [0, 7, 200, 333])
        ]
        by_stream(*rows, m, grad, *offsets)
        rows[2][:, :, 6] = 0
        by_moments(*rows, m, grad, None, None)
        make_ill_conditioned(rows[0], rows[1])
        by_moments(*rows, m, grad, None, None)
        by_moments(*rows, m, grad, *offsets)
        if width <= 64:
            few = [x[:, :, :61] for x in rows]
            by_small_bags(*few, m[..., :61], grad[:, :, :61], None, None)
            offsets = [
                torch.tensor(bounds, device="cuda") for bounds in ([0, 33, 33, 61], [0, 7, 40, 61])
            ]
            by_small_bags(*few, m[..., :61], grad[:, :, :61], *offsets)
        torch.cuda.synchronize()
        print(f"{dtype}, heads of width {width}, values of {values}: every kernel ran", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    listed = ", ".join(
        f"{number}: {dtype} with heads of {width} and values of {values}"
        for number, (dtype, width, values) in enumerate(KINDS)
    )
    parser.add_argument(
        "kinds", nargs="*", type=int, metavar="KIND", help=f"{listed} (default: all)"
    )
    main(parser.parse_args().kinds or list(range(len(KINDS))))
