"""Which path the attention of a model takes on this machine, and whether every path that runs here computes rightly."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from flashsign import spherical_attention
from flashsign.dispatch import KERNELS, Kernel, only, plan
from flashsign.errors import BackendUnavailable
from flashsign.reference import reference_spherical_attention
from grn.config.schema import ModelConfig

SHAPE = (2, 4, 2, 192, 32)  # C, H, K, N = M, E of the self-test: small, as CPUs may interpret the kernels
CPU_SHAPE = (2, 2, 1, 40, 16)
# Largest difference from the definition, relative to its root mean square: a wrong kernel's is about 1.
ALLOWED = {torch.float32: 2e-2, torch.float16: 1e-1}
SINGLE = ("triton_gene_parallel", "torch_gene_parallel")  # need several processes


@dataclass(frozen=True)
class PathTaken:
    """genes: of a bag.   kernel: of the forward with gradients to follow.   reason: why it is none of Triton's."""

    genes: int
    kernel: str
    reason: str


@dataclass(frozen=True)
class SelfTest:
    """kernel, dtype: what ran.   error: largest difference from the definition, of output and gradients.   passed."""

    kernel: str
    dtype: str
    error: float
    passed: bool


def own_device() -> torch.device:
    return torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


def paths_taken(config: ModelConfig, genes: tuple[int, ...] = (500, 2000, 20_000)) -> list[PathTaken]:
    """The path of a block's attention in training, for bags of so many genes, in the dtype that training uses here."""
    device = own_device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    width = config.width // config.query_heads
    found = []
    for count in genes:
        queries = (8, config.query_heads, count, width)
        chosen = plan(queries, (8, config.key_heads, count, width), dtype=dtype, gradients=True, device=device)
        found.append(PathTaken(count, chosen.kernel, chosen.reason))
    return found


def self_test() -> list[SelfTest]:
    """Every path that one process can run here against the definition in float64: outputs and gradients."""
    device = own_device()
    dtypes = [torch.float32, torch.float16] if device.type == "cuda" else [torch.float32]
    found = []
    for kernel in KERNELS:
        for dtype in dtypes if kernel not in SINGLE else ():
            error = _error(kernel, dtype, device)
            if error is not None:
                found.append(SelfTest(kernel, str(dtype).removeprefix("torch."), error, error <= ALLOWED[dtype]))
    return found


def _error(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> float | None:
    """The largest error of a path relative to the definition's root mean square; None where it cannot run here."""
    cells, heads, key_heads, genes, width = SHAPE if device.type == "cuda" else CPU_SHAPE
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    q, k, v = drawn(cells, heads, genes, width), *(drawn(cells, key_heads, genes, width) for _ in range(2))
    multiplicity = torch.randint(0, 5, (cells, genes), generator=generator).to(device, dtype)
    direction = drawn(cells, heads, genes, width)
    exact = q.double().requires_grad_(), k.double().requires_grad_(), v.double().requires_grad_()
    expected = reference_spherical_attention(*exact, multiplicity=multiplicity.double())
    wanted = [expected.detach(), *torch.autograd.grad(expected, exact, direction.double())]
    q, k, v = (each.requires_grad_() for each in (q, k, v))
    try:
        with only(kernel):
            output = spherical_attention(q, k, v, multiplicity)
            computed = [output.detach(), *torch.autograd.grad(output, (q, k, v), direction)]
    except BackendUnavailable:
        return None
    return max(
        float((found.double() - true).abs().max() / true.square().mean().sqrt())
        for found, true in zip(computed, wanted, strict=True)
    )
