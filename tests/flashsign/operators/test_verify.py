"""A kernel that is wrong is found before its first use, never runs for a user, and torch computes
in its place.

The kernels run in Triton's interpreter or on a GPU; FLASHSIGN_VERIFY=always has them checked there,
too.
"""

import importlib
import re
import subprocess
import sys
import warnings

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

pytest.importorskip("triton")
KERNELS = ["triton_stream", "triton_small_bags", "triton_moments"]
PLACE = verify.Place("triton_stream", torch.float32, 16, 16, DEVICE)


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Nothing is known of any kernel, and the user's cache is elsewhere."""
    monkeypatch.setattr(verify, "_KNOWN", {})
    monkeypatch.setattr(verify, "_RUNNING", {})
    monkeypatch.setattr(verify, "_WAITING", set())
    monkeypatch.setattr(verify, "INTERPRETED_SIZES", (7,))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(verify.VARIABLE, "always")


@pytest.fixture
def planted(monkeypatch):
    """planted(kernel, part): from here on, a part of what the kernel computes is off by a
    hundredth, at an edge.
    """
    right = {"forward": run_kernels.forward, "backward": run_kernels.backward}
    parts = {"forward": ("o", "inverse"), "backward": ("dq", "dk", "dv", "dm")}

    def plant(kernel: str, part: str) -> list[str]:
        calls: list[str] = []

        def wrong(direction):
            def run(plan, *arguments, **options):
                found = list(right[direction](plan, *arguments, **options))
                if plan.kernel == kernel:
                    calls.append(direction)
                    if part in parts[direction]:
                        at = parts[direction].index(part)
                        found[at] = found[at].clone()
                        found[at][:, :, -1] *= (
                            1.01  # the last row alone, as a wrong mask would have it
                        )
                return tuple(found)

            return run

        for direction in right:
            monkeypatch.setattr(run_kernels, direction, wrong(direction))
        return calls

    return plant


def attend(kernel: str):
    def call(*tensors, **options):
        with dispatch.only(kernel):
            return spherical_attention(
                *tensors, method=dispatch.KERNELS[kernel][1], backend="triton", **options
            )

    return call


def by_torch(kernel: str, tensors, grad):
    def call(*given):
        return spherical_attention(*given, method=dispatch.KERNELS[kernel][1], backend="torch")

    return with_gradients(call, tensors, grad)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_right_kernel_is_checked_once_and_runs(kernel, planted):
    calls = planted(kernel, "nothing")
    *tensors, grad = draw(queries=9, keys=9)
    with warnings.catch_warnings(action="error"):
        first = with_gradients(attend(kernel), tensors, grad)
        checked = len(calls)
        again = with_gradients(attend(kernel), tensors, grad)
    assert checked > 2 and len(calls) == checked + 2
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("triton_stream", "o"),
        ("triton_stream", "dq"),
        ("triton_stream", "dk"),
        ("triton_small_bags", "dv"),
        ("triton_moments", "o"),
        ("triton_moments", "dm"),
    ],
)
def test_a_wrong_kernel_is_refused_and_torch_takes_over(kernel, part, planted):
    calls = planted(kernel, part)
    *tensors, grad = draw(queries=9, keys=9)
    with pytest.warns(RuntimeWarning, match=rf"{kernel} float32 16 .* {part} "):
        found = with_gradients(attend(kernel), tensors, grad)
    checked = len(calls)
    with warnings.catch_warnings(action="error"):  # said once
        again = with_gradients(attend(kernel), tensors, grad)
    assert len(calls) == checked, "the kernel never runs again"
    for one, other, true in zip(found, again, by_torch(kernel, tensors, grad), strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, true)


def fails(*_, **__):
    raise RuntimeError("PassManager::run failed\nmore")


def test_a_kernel_that_does_not_compile_is_not_used(monkeypatch):
    monkeypatch.setattr(run_kernels, "forward", fails)
    *tensors, grad = draw(queries=9, keys=9)
    with pytest.warns(RuntimeWarning, match="PassManager::run failed"):
        found = with_gradients(attend("triton_stream"), tensors, grad)
    torch.testing.assert_close(found, by_torch("triton_stream", tensors, grad))


def test_compiled_code_takes_torch_in_a_wrong_kernels_place(planted):
    """An operator's forward and its backward decide alike."""
    planted("triton_moments", "o")
    *tensors, grad = draw(queries=9, keys=9, values=5)
    call = attend("triton_moments")
    with pytest.warns(RuntimeWarning, match="triton_moments"):
        found = with_gradients(torch.compile(call, backend="aot_eager"), tensors, grad)
    for one, other in zip(found, by_torch("triton_moments", tensors, grad), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", ["triton_small_bags", "triton_moments"])
def test_compiled_code_does_not_wait_and_a_backward_goes_with_its_forward(
    monkeypatch, planted, kernel
):
    """The check may end in between: torch's forward has not what a kernel's backward reads."""
    calls, answer = planted(kernel, "nothing"), [None]
    monkeypatch.setattr(kernel_operators, "known", lambda *_: answer[0])
    *tensors, grad = draw(queries=9, keys=9, values=5)
    compiled = torch.compile(attend(kernel), backend="aot_eager")
    leaves = [x.detach().requires_grad_() for x in tensors]
    output = compiled(*leaves)
    answer[0] = ""
    found = output.detach(), *torch.autograd.grad(output, leaves, grad)
    assert not calls
    for one, other in zip(found, by_torch(kernel, tensors, grad), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    with_gradients(compiled, tensors, grad)
    assert calls == ["forward", "backward"]


def test_one_changed_byte_of_any_source_changes_what_results_are_kept_by(tmp_path):
    (tmp_path / "below").mkdir()
    files = [tmp_path / "a.py", tmp_path / "below" / "b.py"]
    for file in files:
        file.write_text("x = 1\n")
    digests = [verify.digest_of([tmp_path])]
    for file in files:
        file.write_text("x = 2\n")
        digests.append(verify.digest_of([tmp_path]))
    assert len(set(digests)) == 3
    assert all(list(folder.rglob("*.py")) for folder in verify.SOURCES)


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


# --- in the background
# ------------------------------------------------------------------------------------------------


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


def test_a_full_device_says_nothing_about_a_kernel(monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(run_kernels, "forward", full)
    with pytest.raises(torch.OutOfMemoryError):
        attend("triton_stream")(*draw(queries=9, keys=9)[:4])
    assert not verify._KNOWN and verify.recalled(PLACE) is None


def test_a_wrong_kernel_of_edge_sums_is_refused(monkeypatch):
    from flashsign.triton import edge_sums

    real = edge_sums.add_weights

    def wrong(q, k, inverse, signed, absolute):
        real(q, k, inverse, signed, absolute)
        signed[-1] *= 1.1

    q, k, _, m, _ = draw(queries=9, keys=9)

    def sums(backend: str) -> EdgeSums:
        return EdgeSums(9, 9, device=DEVICE).add(q, k, m, backend=backend)

    with warnings.catch_warnings(action="error"):
        torch.testing.assert_close(sums("triton").signed, sums("torch").signed)
    verify._KNOWN.clear()
    monkeypatch.setattr(edge_sums, "add_weights", wrong)
    with pytest.warns(RuntimeWarning, match="edge_sums float32 16"):
        found = sums("triton")
    torch.testing.assert_close(found.signed, sums("torch").signed)


# --- tables of scores
# -------------------------------------------------------------------------------------------------

TABLES = [
    importlib.import_module(f"flashsign.tables.{name}")
    for name in ("shared_scores", "slope_penalty")
]


@pytest.fixture
def tables(monkeypatch):
    """tables(together): values and gradients of attention over tables of scores, alone or with the
    penalty, by its kernels if they are known to be right; a few small tables are checked.
    """
    for module in TABLES:
        monkeypatch.setattr(module, "choose_for_tables", lambda *_: "triton")
        monkeypatch.setattr(module, "INTERPRETED", ((5, 7), (5, 7)))
    random = torch.Generator().manual_seed(0)
    shapes = {
        "scores": (1, 1, 1, 5, 7),
        "amount": (1, 1, 7),
        "basal": (1, 1, 5),
        "m": (3, 7),
        "centre": (1, 1, 1, 7),
    }
    given = {
        name: torch.randn(shape, generator=random).to(DEVICE).abs()
        for name, shape in shapes.items()
    }

    def compute(together: bool) -> list[torch.Tensor]:
        m, centre = given["m"], given["centre"]
        leaves = scores, amount, basal = [
            given[each].requires_grad_() for each in ("scores", "amount", "basal")
        ]
        if together:
            rest = {
                "gain": torch.ones_like(basal),
                "square": torch.ones_like(centre[0]),
                "groups": [3],
            }
            penalty = torch.tensor([[0.3, 0.5, 0.4]], device=DEVICE)
            both = attention_and_penalty(
                scores, amount, m, centre=centre, basal=basal, penalty=penalty, **rest
            )
        else:
            both = (
                attention_by_scores(
                    scores, amount[..., None], m, centre=centre, basal=basal, groups=[3]
                ),
            )
        gradients = torch.autograd.grad(sum(each.square().sum() for each in both), leaves)
        return [each.detach() for each in (*both, *gradients)]

    return compute


def by_torch_alone(monkeypatch, tables, together):
    with monkeypatch.context() as patch:
        for module in TABLES:
            patch.setattr(module, "choose_for_tables", lambda *_: "torch")
        return tables(together)


def counted(monkeypatch, module, name, calls, factor=1.0):
    """Calls of a launch are counted, and the first of its results is off by a factor, in its last
    row.
    """
    real = getattr(module, name)

    def run(*arguments, **options):
        calls.append(name)
        first, *rest = real(*arguments, **options)
        first = first.clone()
        first[..., -1] *= factor
        return first, *rest

    monkeypatch.setattr(module, name, run)


@pytest.mark.parametrize("together", [False, True])
def test_right_kernels_of_tables_are_checked_once_and_run(monkeypatch, tables, together):
    from flashsign.triton import shared_scores

    calls = []
    counted(monkeypatch, shared_scores, "forward", calls)
    with warnings.catch_warnings(action="error"):
        first = tables(together)
        checked = len(calls)
        again = tables(together)
    assert checked > 2 and len(calls) == checked + 1
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    torch.testing.assert_close(
        first, by_torch_alone(monkeypatch, tables, together), rtol=1e-4, atol=1e-5
    )
    name = "slope_penalty float32 16 1" if together else "attention_by_scores float32 16"
    assert [each.name for each in verify._KNOWN] == [name]


@pytest.mark.parametrize(
    ("together", "launch", "words"),
    [
        (False, "forward", "attention_by_scores float32 16 is not used .* its output is off"),
        (
            False,
            "backward",
            "attention_by_scores float32 16 is not used .* its gradient of scores is off",
        ),
        (
            True,
            "backward",
            "slope_penalty float32 16 1 is not used .* its gradient of scores is off",
        ),
    ],
)
def test_torch_takes_the_place_of_a_wrong_kernel_of_tables(
    monkeypatch, tables, together, launch, words
):
    from flashsign.triton import shared_scores

    calls = []
    expected = by_torch_alone(monkeypatch, tables, together)
    counted(monkeypatch, shared_scores, launch, calls, 1.01)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = tables(together)
    assert re.search(words, str(said[0].message))
    if not together:  # with the penalty, attention alone is another kernel, which is asked next
        checked = len(calls)
        tables(together)
        assert len(calls) == checked, "the kernel never runs again"
    torch.testing.assert_close(found, expected)


def test_a_wrong_penalty_is_found_by_itself(monkeypatch, tables):
    from flashsign.triton import slope_penalty

    calls = []
    counted(monkeypatch, slope_penalty, "value", calls, 1.01)
    with pytest.warns(RuntimeWarning, match="slope_penalty float32 16 1"):
        found = tables(True)
    torch.testing.assert_close(
        found, by_torch_alone(monkeypatch, tables, True), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("together", [False, True])
def test_torch_computes_with_tables_while_their_kernels_are_checked(monkeypatch, tables, together):
    expected = by_torch_alone(monkeypatch, tables, together)
    for module in TABLES:
        monkeypatch.setattr(module, "known_at", lambda *_: None)
        monkeypatch.setattr(module, "_kernels", fails)
    torch.testing.assert_close(tables(together), expected, rtol=0, atol=0)


@pytest.mark.usefixtures("tables")
def test_the_check_of_a_process_knows_the_kernels_of_tables(monkeypatch):
    for kernel, room, values in (("attention_by_scores", 16, 16), ("slope_penalty", 16, 2)):
        place = verify.Place(kernel, torch.float32, room, values, DEVICE)
        assert check._checked(place).problem == "" and verify.recalled(place) == ""
    monkeypatch.setattr(TABLES[0], "OneNumber", None)
    assert (
        "cannot be run"
        in check._checked(
            verify.Place("attention_by_scores", torch.float32, 16, 16, DEVICE)
        ).problem
    )
