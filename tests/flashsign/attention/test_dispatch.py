"""What runs for which call: the plan of devices that are not here, and that calls keep to it."""

import importlib
import re

import pytest
import torch

from flashsign import BackendUnavailable, spherical_attention
from flashsign.attention import dispatch
from flashsign.attention.dispatch import Device, Plan, plan
from flashsign.tables.shared_scores import choose_for_tables
from flashsign.tuning import device as facts

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


def of_triton(release):
    return Device("cuda", (9, 0), release)


H200 = of_triton("3.6.0")
A100 = Device("cuda", (8, 0), "3.7.1")
V100 = Device("cuda", (7, 0), "3.6.0")
CPU = Device("cpu")
INTERPRETER = Device("cpu", triton="3.7.1", interpreted=True)


def shape(genes, width=64, cells=1, heads=8):
    return cells, heads, genes, width


@pytest.mark.parametrize(
    ("q", "options", "kernel"),
    [
        # Small bags: at most 128 queries, and 128 keys of 16 bits or 64 of float32.
        (shape(128), {"dtype": HALF}, "triton_small_bags"),
        (shape(128, 32), {"keys": shape(64, 32)}, "triton_small_bags"),
        (shape(128, 32), {"keys": shape(65, 32)}, "triton_stream"),
        (shape(129), {"dtype": HALF, "keys": shape(8), "method": "stream"}, "triton_stream"),
        (shape(128), {"dtype": HALF, "method": "moments"}, "triton_moments"),
        # Long bags: moments, unless heads are too wide for them or keys are few.
        (shape(10_000), {"dtype": HALF, "gradients": True}, "triton_moments"),
        (shape(10_000), {"dtype": HALF, "keys": shape(30)}, "triton_stream"),
        (shape(40_000, 160), {"dtype": HALF}, "triton_stream"),
        # The Hopper kernel: from 2048 keys, 16-bit heads of 64 or 128 (after padding), compute
        # capability 9.0.
        (shape(2048), {"dtype": HALF, "method": "stream"}, "triton_stream_hopper"),
        (shape(2047), {"dtype": HALF, "method": "stream"}, "triton_stream"),
        (shape(4096, 32), {"dtype": HALF, "method": "stream"}, "triton_stream"),
        (shape(4096), {"dtype": SINGLE, "method": "stream"}, "triton_stream"),
        (shape(4096), {"dtype": HALF, "method": "stream", "device": A100}, "triton_stream"),
        (shape(4096), {"dtype": HALF, "method": "stream", "values": 16}, "triton_stream_hopper"),
        (
            shape(4096),
            {"dtype": HALF, "method": "stream", "device": of_triton("3.7.1")},
            "triton_stream_hopper",
        ),
        (
            shape(4096),
            {"dtype": HALF, "method": "stream", "device": of_triton("3.9.0")},
            "triton_stream",
        ),
        # Packed bags count by their mean, small bags by the largest.
        ((3 * 100, 4, 32), {"dtype": HALF, "bags": 3}, "triton_small_bags"),
        ((3 * 100, 4, 32), {"dtype": HALF, "bags": 3, "largest": (129, 100)}, "triton_stream"),
        ((3 * 2000, 4, 64), {"dtype": HALF, "bags": 3, "method": "stream"}, "triton_stream"),
        # Torch.
        (shape(3000), {"dtype": HALF, "backend": "torch"}, "torch_moments"),
        (shape(3000), {"dtype": HALF, "in_transform": True}, "torch_moments"),
        (shape(3000), {"dtype": DOUBLE}, "torch_moments"),
        (shape(3000), {"dtype": HALF, "device": V100}, "torch_moments"),
        (shape(3000), {"dtype": HALF, "device": INTERPRETER}, "torch_moments"),
        (
            shape(100),
            {"dtype": HALF, "device": INTERPRETER, "backend": "triton"},
            "triton_small_bags",
        ),
    ],
    ids=str,
)
def test_plans_of_an_h200(q, options, kernel):
    assert plan(q, **{"device": H200} | options).kernel == kernel


@pytest.mark.parametrize(
    ("keys", "in_transform", "kernel"),
    [
        (1, False, "stream"),
        (3, False, "stream"),
        (10, False, "moments"),
        (10, True, "stream"),
        (90, True, "moments"),
    ],
)
def test_torch_takes_the_method_with_fewer_operations(keys, in_transform, kernel):
    """Under a transform moments cost four times as much."""
    found = plan((1, 1, 90, 4), (1, 1, keys, 4), in_transform=in_transform, device=CPU)
    assert found.kernel == f"torch_{kernel}" and (found.backend, found.method) == ("torch", kernel)


@pytest.mark.parametrize(("keys", "from_moments"), [(8 * 64, False), (8 * 64 + 1, True)])
def test_dq_comes_from_moments_where_keys_are_many(keys, from_moments):
    found = plan(shape(1000), shape(keys), dtype=HALF, method="stream", device=H200)
    assert found == Plan("triton_stream", dq_from_moments=from_moments)
    wide = plan(shape(1000, 256), shape(keys, 256), dtype=HALF, device=H200)
    assert wide == Plan("triton_stream", dq_from_moments=False)


@pytest.mark.parametrize(
    ("q", "options"),
    [
        (shape(100), {"device": CPU}),
        (shape(100), {"device": Device("cuda", (9, 0), "")}),
        (shape(100), {"device": V100}),
        (shape(100), {"dtype": DOUBLE}),
        (shape(100, 320), {}),
        (shape(100, 160), {"method": "moments"}),
        (shape(100, cells=65_536, heads=1), {}),
        (shape(100), {"in_transform": True}),
    ],
    ids=str,
)
def test_a_call_that_no_kernel_takes_has_a_reason_and_triton_refuses_it(q, options):
    options = {"device": H200, "dtype": HALF} | options
    found = plan(q, **options)
    assert found.backend == "torch" and found.reason
    with pytest.raises(BackendUnavailable, match=re.escape(found.reason)):
        plan(q, backend="triton", **options)


@pytest.fixture
def interpreter():
    pytest.importorskip("triton")
    if torch.cuda.is_available() or not facts.INTERPRETED:
        pytest.skip("the interpreter is for machines without a GPU")


@pytest.fixture
def launches(interpreter, monkeypatch):
    """Names of the kernels that calls reached, forward and backward."""
    seen = []

    def watch(name, module, direction):
        real = getattr(module, direction)
        monkeypatch.setattr(
            module, direction, lambda *x: seen.append(f"{name} {direction}") or real(*x)
        )

    for name, module in (
        ("triton_small_bags", "small_bags"),
        ("triton_stream", "streaming.stream_launches"),
        ("triton_moments", "moments.moment_launches"),
    ):
        for direction in ("forward", "backward"):
            watch(name, importlib.import_module(f"flashsign.triton.{module}"), direction)
    return seen


@pytest.mark.parametrize("kernel", ["triton_small_bags", "triton_stream", "triton_moments"])
def test_a_path_that_was_asked_for_is_taken_forward_and_backward(draw, launches, kernel):
    leaves = [x.requires_grad_() for x in draw(width=16, dtype=SINGLE)[:4]]
    with dispatch.only(kernel):
        output = spherical_attention(*leaves, backend="triton")
    assert launches == [f"{kernel} forward"]
    torch.autograd.grad(output.sum(), leaves)  # outside of `only`
    assert launches == [f"{kernel} forward", f"{kernel} backward"]


def test_a_path_that_cannot_take_a_call_is_an_error(draw, interpreter):
    tensors = draw(queries=200, width=16, dtype=SINGLE)[:4]
    for kernel in ("triton_small_bags", "triton_stream_hopper"):
        with dispatch.only(kernel), pytest.raises(BackendUnavailable):
            spherical_attention(*tensors)
    with dispatch.only("triton_moments"), pytest.raises(BackendUnavailable):
        spherical_attention(*draw()[:4])
    with pytest.raises(ValueError), dispatch.only("fast"):
        pass


class Table:
    """A table of scores on a GPU, as far as the dispatch looks."""

    is_cuda, is_meta, device = True, False, torch.device("cuda", 0)

    def __init__(self, dtype=SINGLE):
        self.dtype = dtype

    def numel(self):
        return 1


@pytest.mark.parametrize(
    ("device", "options", "by"),
    [
        (of_triton("3.4.0"), {}, "triton"),
        (of_triton("3.9.0"), {}, "triton"),
        (A100, {}, "triton"),
        (Device("cuda", (12, 0), "3.7.1"), {}, "triton"),
        (H200, {"bags": 64}, "triton"),
        (H200, {"bags": 65}, "torch"),
        (H200, {"dtype": DOUBLE}, "torch"),
        (V100, {}, "torch"),
        (of_triton(""), {}, "torch"),
    ],
    ids=str,
)
def test_tables_of_scores_take_kernels_on_any_gpu_that_has_them(monkeypatch, device, options, by):
    """Whether they are right there is asked next: operators.verify."""
    monkeypatch.setattr(facts, "device_facts", lambda _: device)
    tensors = Table(), Table(options.get("dtype", SINGLE))
    assert choose_for_tables(tensors, options.get("bags", 3)) == by
