"""A kernel that is wrong is found before its first use, never runs for a user, and torch computes in its place.

The kernels run in Triton's interpreter or on a GPU; FLASHSIGN_VERIFY=always has them checked there, too.
"""

import json
import warnings

import pytest
import torch
from kernel_cases import DEVICE, draw, packed, with_gradients

from flashsign import EdgeSums, dispatch, spherical_attention
from flashsign.operators import registration, verify
from flashsign.tuning import tables

pytest.importorskip("triton")
KERNELS = ["triton_stream", "triton_small_bags", "triton_moments"]


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Nothing is known of any kernel, and the user's cache is elsewhere."""
    monkeypatch.setattr(verify, "_KNOWN", {})
    monkeypatch.setattr(verify, "INTERPRETED_SIZES", (1, 7))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(verify.VARIABLE, "always")


@pytest.fixture
def planted(monkeypatch):
    """planted(kernel, part): from here on, a part of what the kernel computes is off by a hundredth, at an edge."""
    real = registration.launches

    def plant(kernel: str, part: str) -> list[str]:
        calls: list[str] = []

        def wrong(run, name):
            def launched(*arguments, **options):
                calls.append(name)
                found = list(run(*arguments, **options))
                if part in ("o", "inverse") and name == "forward":
                    at = ("o", "inverse").index(part)
                elif part.startswith("d") and name == "backward":
                    at = ("dq", "dk", "dv", "dm").index(part)
                else:
                    return tuple(found)
                found[at] = found[at].clone()
                found[at][:, :, -1] *= 1.01  # the last row alone, as a wrong mask would have it
                return tuple(found)

            return launched

        def launches(asked):
            forward, backward = real(asked)
            return (wrong(forward, "forward"), wrong(backward, "backward")) if asked == kernel else (forward, backward)

        monkeypatch.setattr(registration, "launches", launches)
        return calls

    return plant


def attend(kernel: str):
    def call(*tensors, **options):
        with dispatch.only(kernel):
            return spherical_attention(*tensors, method=dispatch.KERNELS[kernel][1], backend="triton", **options)

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
    with pytest.warns(
        RuntimeWarning, match=rf"The kernel {kernel} float32 16 is not used on .* because its {part} is off"
    ):
        found = with_gradients(attend(kernel), tensors, grad)
    checked = len(calls)
    with warnings.catch_warnings(action="error"):  # said once
        again = with_gradients(attend(kernel), tensors, grad)
    assert len(calls) == checked, "the kernel never runs again"
    for one, other, true in zip(found, again, by_torch(kernel, tensors, grad), strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, true)


def test_torch_takes_over_for_packed_bags_and_shared_multiplicities(planted):
    planted("triton_moments", "dv")
    (q, k, v, m), grad, offsets, query_offsets = packed(*draw(cells=1))
    cut = {"offsets": offsets, "query_offsets": query_offsets}
    with pytest.warns(RuntimeWarning, match="triton_moments"):
        found = with_gradients(lambda *x: attend("triton_moments")(*x, **cut), (q, k, v, m), grad)
    true = with_gradients(lambda *x: spherical_attention(*x, **cut, backend="torch"), (q, k, v, m), grad)
    for one, other in zip(found, true, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_kernel_that_does_not_compile_is_not_used(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("PassManager::run failed\nmore")

    monkeypatch.setattr(registration, "launches", lambda kernel: (fails, fails))
    *tensors, grad = draw(queries=9, keys=9)
    expected = r"because it cannot be run \(RuntimeError: PassManager::run failed\)"
    with pytest.warns(RuntimeWarning, match=expected):
        found = with_gradients(attend("triton_stream"), tensors, grad)
    torch.testing.assert_close(found, by_torch("triton_stream", tensors, grad))


def test_every_block_size_is_checked_and_the_tables_stay(monkeypatch):
    """One entry alone is miscompiled."""
    key = 4, 16
    entries = [*tables.FORWARD[key], tables.FALLBACK]
    monkeypatch.setitem(tables.FORWARD, key, list(entries))
    used = []
    real_forward, backward = registration.launches("triton_stream")

    def forward(*call):
        used.append(tuple(tables.FORWARD[key]))
        found = real_forward(*call)
        return (found[0] + (used[-1] == (tables.FALLBACK,)), *found[1:])

    problem = verify.find_problem("triton_stream", torch.float32, 16, DEVICE, forward, backward)
    assert "with block sizes number 2" in problem and "its o is off" in problem
    assert (entries[0],) in used and (tables.FALLBACK,) in used
    assert tables.FORWARD[key] == entries


def test_results_are_remembered_by_gpu_driver_triton_and_source(planted, monkeypatch):
    """As on a GPU that nobody has seen: `once` checks, and the next process reads."""
    monkeypatch.setenv(verify.VARIABLE, "once")
    monkeypatch.setattr(verify, "_seen", lambda device: False)
    *tensors, grad = draw(queries=9, keys=9)
    calls = planted("triton_stream", "dk")
    with pytest.warns(RuntimeWarning, match="its dk is off"):
        with_gradients(attend("triton_stream"), tensors, grad)
    kept = json.loads(verify.cache_file().read_text())
    pair = verify.describe_pair(DEVICE)
    assert list(kept) == [pair] and "driver" in pair and "Triton" in pair and "kernels" in pair
    assert kept[pair]["triton_stream float32 16"].startswith("its dk is off")
    calls.clear()
    verify._KNOWN.clear()  # another process
    with pytest.warns(RuntimeWarning, match="its dk is off"):
        with_gradients(attend("triton_stream"), tensors, grad)
    assert not calls
    verify._KNOWN.clear()
    monkeypatch.setattr(verify, "_source", lambda: "other kernels")
    with pytest.warns(RuntimeWarning, match="its dk is off"):
        with_gradients(attend("triton_stream"), tensors, grad)
    assert calls, "other kernels are checked anew"


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"%s": 3}', '{"%s": {"triton_stream float32 16": 1}}'])
def test_a_cache_that_says_nothing_is_as_none(content, monkeypatch):
    monkeypatch.setenv(verify.VARIABLE, "once")
    monkeypatch.setattr(verify, "_seen", lambda device: False)
    verify.cache_file().parent.mkdir(parents=True)
    verify.cache_file().write_text(content.replace("%s", verify.describe_pair(DEVICE)))
    checks = []
    assert verify.is_right("triton_stream", torch.zeros(1, 1, 3, 16, device=DEVICE), lambda: checks.append(1) or "")
    assert checks
    assert json.loads(verify.cache_file().read_text())[verify.describe_pair(DEVICE)] == {"triton_stream float32 16": ""}


def test_a_cache_that_cannot_be_written_stops_nothing(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert verify.is_right("triton_stream", torch.zeros(1, 1, 3, 16, device=DEVICE), lambda: "")


@pytest.mark.parametrize(("wanted", "seen", "checked"), [("never", False, 0), ("once", True, 0), ("once", False, 1)])
def test_what_is_checked(monkeypatch, wanted, seen, checked):
    monkeypatch.setenv(verify.VARIABLE, wanted)
    monkeypatch.setattr(verify, "_seen", lambda device: seen)
    checks = []
    q = torch.zeros(1, 1, 3, 16, device=DEVICE)
    for _ in range(2):
        assert verify.is_right("triton_stream", q, lambda: checks.append(1) or "")
    assert len(checks) == checked
    assert not checked or verify.remembered(verify.describe_pair(DEVICE)) == {"triton_stream float32 16": ""}


def test_another_word_is_refused(monkeypatch):
    monkeypatch.setenv(verify.VARIABLE, "sometimes")
    with pytest.raises(ValueError, match="FLASHSIGN_VERIFY is 'sometimes'; set it to one of never, once, always"):
        attend("triton_stream")(*draw(queries=9, keys=9)[:4])


def test_a_full_device_says_nothing_about_a_kernel(monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(registration, "launches", lambda kernel: (full, full))
    with pytest.raises(torch.OutOfMemoryError):
        attend("triton_stream")(*draw(queries=9, keys=9)[:4])
    assert not verify._KNOWN and not verify.cache_file().exists()


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
    with pytest.warns(RuntimeWarning, match="The kernel edge_sums float32 16 is not used .* its signed sums are off"):
        found = sums("triton")
    torch.testing.assert_close(found.signed, sums("torch").signed)


def test_h200_with_triton_3_6_was_seen():
    assert ("NVIDIA H200", "3.6") in tables.SEEN


def test_a_warning_is_no_wrong_kernel():
    """A first call of cuBLAS warns, and users may have made warnings errors."""

    def check() -> str:
        warnings.warn("there was no current CUDA context", stacklevel=1)
        return ""

    with warnings.catch_warnings(action="error"):
        assert verify.is_right("triton_stream", torch.zeros(1, 1, 3, 16, device=DEVICE), check)


@pytest.mark.parametrize("module", ["Kernel Module", "Open Kernel Module for x86_64"])
def test_the_release_of_the_driver_is_found(module):
    text = f"NVRM version: NVIDIA UNIX {module}  580.95.05  Release Build  (dvs-builder)\nGCC version:  12.3.0\n"
    assert verify.driver_in(text) == "580.95.05"
    with pytest.raises(ValueError, match="no release"):
        verify.driver_in("NVRM version: NVIDIA UNIX Kernel Module")
