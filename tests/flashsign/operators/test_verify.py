"""A kernel that is wrong is found before its first use, never runs for a user, and torch computes
in its place.

The kernels run in Triton's interpreter or on a GPU; FLASHSIGN_VERIFY=always has them checked there,
too.
"""

import subprocess
import sys
import warnings
from functools import partial
from importlib import import_module
from typing import NamedTuple

import pytest
import torch
from kernel_cases import DEVICE, draw, with_gradients

from flashsign import (
    EdgeSums,
    attention_and_penalty,
    attention_by_scores,
    check,
    spherical_attention,
)
from flashsign.attention import dispatch
from flashsign.operators import kernel_operators, run_kernels, verify
from flashsign.tables import shared_scores, slope_penalty

pytest.importorskip("triton")
PLACE = verify.Place("triton_stream", torch.float32, 16, 16, DEVICE)
TABLES = shared_scores, slope_penalty


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Nothing is known of any kernel, checks are small, and the user's cache is elsewhere."""
    monkeypatch.setattr(verify, "_KNOWN", {})
    monkeypatch.setattr(verify, "_RUNNING", {})
    monkeypatch.setattr(verify, "_WAITING", set())
    monkeypatch.setattr(verify, "INTERPRETED_SIZES", (7,))
    for module in TABLES:
        monkeypatch.setattr(module, "INTERPRETED", ((5, 7), (5, 7)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(verify.VARIABLE, "always")


def attend(kernel, *tensors):
    """By a kernel, or by torch in its place."""
    with dispatch.only(kernel):
        return spherical_attention(*tensors, method=dispatch.KERNELS[kernel][1], backend="triton")


def attention(kernel, backend="triton", attend=attend, **sizes):
    *tensors, grad = draw(queries=9, keys=9, **sizes)
    method = dispatch.KERNELS[kernel][1]
    by_torch = partial(spherical_attention, method=method, backend="torch")
    call = partial(attend, kernel) if backend == "triton" else by_torch
    return with_gradients(call, tensors, grad)


def edge_sums(backend="triton"):
    q, k, _, m, _ = draw(queries=9, keys=9)
    sums = EdgeSums(9, 9, device=DEVICE).add(q, k, m, backend=backend)
    return sums.signed, sums.absolute


def tables(penalty, backend="triton"):
    """Values and gradients of attention over tables of scores, alone or with the penalty."""
    random = torch.Generator().manual_seed(0)
    shapes = (1, 1, 1, 5, 7), (1, 1, 7), (1, 1, 5), (3, 7), (1, 1, 1, 7)
    scores, amount, basal, m, centre = (
        torch.randn(shape, generator=random).to(DEVICE).abs() for shape in shapes
    )
    given = {"basal": basal, "centre": centre, "groups": [3]}
    leaves = [x.requires_grad_() for x in (scores, amount, basal)]
    with pytest.MonkeyPatch.context() as patch:
        for module in TABLES:
            patch.setattr(module, "choose_for_tables", lambda *_: backend)
        if penalty:
            given |= {"gain": torch.ones_like(basal), "square": torch.ones_like(centre[0])}
            given |= {"penalty": torch.tensor([[0.3, 0.5, 0.4]], device=DEVICE)}
            both = attention_and_penalty(scores, amount, m, **given)
        else:
            both = (attention_by_scores(scores, amount[..., None], m, **given),)
        gradients = torch.autograd.grad(sum(each.square().sum() for each in both), leaves)
    return [each.detach() for each in (*both, *gradients)]


class Sabotage(NamedTuple):
    """A computation, and the launch whose result number `part` is off by a hundredth at an edge, as
    a wrong mask would have it; what the warning says.
    """

    compute: object
    launches: tuple[str, str]
    part: int
    edge: object
    words: str


RUN, ROW, LAST = "flashsign.operators.run_kernels", (..., slice(-1, None), slice(None)), (..., -1)
SCORES, PENALTY = "flashsign.triton.shared_scores", "flashsign.triton.slope_penalty"
OFF = "float32 16 .* its output is off"
SABOTAGES = {
    "stream backward": Sabotage(
        partial(attention, "triton_stream"), (RUN, "backward"), 1, ROW, "triton_stream .* dk "
    ),
    "small bags backward": Sabotage(
        partial(attention, "triton_small_bags"), (RUN, "backward"), 2, ROW, "small_bags .* dv "
    ),
    "moments": Sabotage(
        partial(attention, "triton_moments"), (RUN, "forward"), 0, ROW, "triton_moments .* o "
    ),
    "moments backward": Sabotage(
        partial(attention, "triton_moments"), (RUN, "backward"), 3, LAST, "triton_moments .* dm "
    ),
    "tables backward": Sabotage(
        partial(tables, False), (SCORES, "backward"), 0, LAST, "by_scores .* gradient of scores"
    ),
    "penalty": Sabotage(
        partial(tables, True), (PENALTY, "value"), 0, LAST, "slope_penalty float32 16 1"
    ),
    "edge sums": Sabotage(
        edge_sums, ("flashsign.triton.edge_sums", "add_weights"), 3, (-1,), "edge_sums float32 16"
    ),
}


@pytest.fixture
def planted(monkeypatch):
    """planted(sabotage, factor): its launches are counted from here on, and off by a factor."""

    def plant(sabotage, factor):
        name, function = sabotage.launches
        module, calls = import_module(name), []
        real = getattr(module, function)

        def launch(*arguments, **options):
            calls.append(function)
            found = real(*arguments, **options)
            if found is None:  # it adds to its arguments
                arguments[sabotage.part][sabotage.edge] *= factor
                return None
            found = list(found)
            found[sabotage.part] = found[sabotage.part].clone()
            found[sabotage.part][sabotage.edge] *= factor
            return tuple(found)

        monkeypatch.setattr(module, function, launch)
        return calls

    return plant


@pytest.mark.parametrize("name", ["small bags backward", "moments", "tables backward", "penalty"])
def test_a_right_kernel_is_checked_once_and_runs(name, planted):
    sabotage = SABOTAGES[name]
    calls, expected = planted(sabotage, 1.0), sabotage.compute("torch")
    with warnings.catch_warnings(action="error"):
        first = sabotage.compute()
        checked = len(calls)
        again = sabotage.compute()
    assert checked > 1 and len(calls) == checked + 1
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_wrong_kernel_is_refused_and_torch_takes_over(name, planted):
    sabotage = SABOTAGES[name]
    expected, calls = sabotage.compute("torch"), planted(sabotage, 1.01)
    with pytest.warns(RuntimeWarning, match=sabotage.words):
        found = sabotage.compute()
    checked = len(calls)
    with warnings.catch_warnings(action="error"):  # said once
        again = sabotage.compute()
    assert len(calls) == checked, "the kernel never runs again"
    torch.testing.assert_close(found, again, rtol=0, atol=0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def fails(*_, **__):
    raise RuntimeError("PassManager::run failed\nmore")


def test_a_kernel_that_does_not_compile_is_not_used(monkeypatch):
    monkeypatch.setattr(run_kernels, "forward", fails)
    with pytest.warns(RuntimeWarning, match="PassManager::run failed"):
        found = attention("triton_stream")
    torch.testing.assert_close(found, attention("triton_stream", "torch"))


def test_compiled_code_takes_torch_in_a_wrong_kernels_place(planted):
    """An operator's forward and its backward decide alike."""
    planted(SABOTAGES["moments"], 1.01)
    compiled = torch.compile(attend, backend="aot_eager")
    with pytest.warns(RuntimeWarning, match="triton_moments"):
        found = attention("triton_moments", attend=compiled, values=5)
    expected = attention("triton_moments", "torch", values=5)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_compiled_code_does_not_wait_and_a_backward_goes_with_its_forward(monkeypatch, planted):
    """The check may end in between: torch's forward has not what a kernel's backward reads."""
    calls, answer = planted(SABOTAGES["moments backward"], 1.0), [None]
    monkeypatch.setattr(kernel_operators, "known", lambda *_: answer[0])
    *tensors, grad = draw(queries=9, keys=9, values=5)
    compiled = torch.compile(partial(attend, "triton_moments"), backend="aot_eager")
    leaves = [x.detach().requires_grad_() for x in tensors]
    output = compiled(*leaves)
    answer[0] = ""
    found = output.detach(), *torch.autograd.grad(output, leaves, grad)
    assert not calls
    expected = attention("triton_moments", "torch", values=5)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    with_gradients(compiled, tensors, grad)
    assert calls == ["backward"]


@pytest.mark.parametrize(("problem", "warned"), [("", 0), ("its dq is off", 1)])
def test_what_was_found_is_recalled_in_another_process(monkeypatch, problem, warned):
    monkeypatch.setenv(verify.VARIABLE, "once")
    monkeypatch.setattr(verify, "_seen", lambda device: False)
    assert verify.recalled(PLACE) is None
    verify.remember(PLACE, problem)
    q = torch.zeros(1, 1, 3, 16, device=DEVICE)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert verify.known(PLACE.kernel, q, 16, fails) == problem
    assert len(found) == warned


def test_a_full_device_says_nothing_about_a_kernel(monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(run_kernels, "forward", full)
    with pytest.raises(torch.OutOfMemoryError):
        attention("triton_stream")
    assert not verify._KNOWN and verify.recalled(PLACE) is None


def test_the_check_of_a_process_knows_the_kernels_of_tables(monkeypatch):
    places = [
        verify.Place(kernel, torch.float32, 16, values, DEVICE)
        for kernel, values in (("attention_by_scores", 16), ("slope_penalty", 2))
    ]
    for place in places:
        assert check._checked(place).problem == "" and verify.recalled(place) == ""
    monkeypatch.setattr(shared_scores, "OneNumber", None)
    assert "cannot be run" in check._checked(places[0]).problem


# --- in the background


class OnAGpu:
    """A tensor on a GPU of a kind that nobody has seen, as far as verify looks."""

    dtype, shape, device, is_cuda = torch.float16, (1, 1, 3, 64), torch.device("cuda", 0), True


@pytest.fixture
def unseen(monkeypatch):
    """unseen(code): a check in the background is a Python program; returns what was said."""
    said = []
    monkeypatch.setenv(verify.VARIABLE, "once")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(verify, "capability", lambda device: (12, 0))
    monkeypatch.setattr(verify, "device_name", lambda device: "NVIDIA New")
    monkeypatch.setattr(verify, "_driver", lambda device: "1.0")
    monkeypatch.setattr(verify, "ptxas_version", lambda device: "12.8")
    monkeypatch.setattr(
        verify.logging.getLogger("flashsign"), "warning", lambda *words: said.append(words)
    )

    def run(code: str) -> list:
        def started(place):
            return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

        monkeypatch.setattr(verify, "_started", started)
        return said

    return run


def ended() -> None:
    for process in verify._RUNNING.values():
        process.wait()


def test_torch_computes_while_a_kernel_is_checked_in_the_background(unseen):
    said = unseen("import time; time.sleep(0.5)")
    assert verify.known("triton_moments", OnAGpu, 64, fails) is None
    assert verify.known("triton_moments", OnAGpu, 64, fails) is None
    assert verify.known("triton_stream", OnAGpu, 64, fails) is None
    assert verify.known("edge_sums", OnAGpu, 64, fails) is None
    assert len(verify._RUNNING) == verify.AT_ONCE and len(said) == 1
    assert not verify.kernels_run()
    ended()
    with warnings.catch_warnings(action="error"):
        assert verify.known("triton_moments", OnAGpu, 64, fails) == ""
    assert not verify.kernels_run(), "two more are waited for"
    assert verify.known("triton_stream", OnAGpu, 64, fails) == ""
    assert verify.known("edge_sums", OnAGpu, 64, fails) is None
    ended()
    assert verify.known("edge_sums", OnAGpu, 64, fails) == "" and verify.kernels_run()
    assert (
        verify.recalled(verify.Place("triton_moments", torch.float16, 64, 64, OnAGpu.device)) == ""
    )


def test_a_graph_that_is_recorded_meanwhile_holds_torchs_operations(unseen, monkeypatch):
    # the process cannot check, and this one must not while it records
    unseen("raise SystemExit(1)")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert verify.known("triton_stream", OnAGpu, 64, fails) is None
    ended()
    assert verify.known("triton_stream", OnAGpu, 64, fails) is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (f"print('its dq is off'); raise SystemExit({verify.WRONG})", "because its dq is off"),
        ("import os; os.kill(os.getpid(), 11)", "ended with signal 11"),
        ("raise SystemExit(1)", "PassManager"),  # the process could not check, so this one does
    ],
)
def test_a_kernel_that_is_found_wrong_in_the_background_is_not_used(unseen, code, words):
    unseen(code)
    assert verify.known("triton_stream", OnAGpu, 64, fails) is None
    ended()
    with pytest.warns(RuntimeWarning, match=words):
        assert verify.known("triton_stream", OnAGpu, 64, fails)
