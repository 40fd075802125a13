"""The version of ptxas is part of what a checked kernel is remembered by."""

import subprocess
import sys

import pytest
import torch

from flashsign.operators import ptxas, verify
from flashsign.operators.ptxas import UNKNOWN, ptxas_version

GPU = torch.device("cuda", 0)
SAYS = "#!/bin/sh\necho 'Cuda compilation tools, release {0}, V{0}.93'\necho 'Build cuda_{0}.r{0}/compiler.1_0'\n"


@pytest.fixture
def device(monkeypatch):
    """device(capability): a GPU that is not here, and the folder of a Triton that is not, either."""
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.delenv(name, raising=False)

    def make(capability=(9, 0)):
        for module in (ptxas, verify):
            monkeypatch.setattr(module, "capability", lambda _: capability)
        monkeypatch.setattr(torch.version, "hip", None)
        return GPU

    return make


@pytest.fixture
def program(monkeypatch, tmp_path):
    """program(release, name): an assembler that says a version; Triton's own where no path is asked for."""
    monkeypatch.setattr(ptxas, "_of_triton", lambda binary: str(tmp_path / binary))

    def write(release, name="ptxas"):
        path = tmp_path / name
        path.write_text(SAYS.format(release))
        path.chmod(0o755)
        ptxas._version.cache_clear()
        return str(path)

    yield write
    ptxas._version.cache_clear()


@pytest.mark.skipif(sys.platform == "win32", reason="the programs are shell scripts")
def test_it_is_the_one_that_triton_takes(device, program, monkeypatch):
    program("12.8"), program("13.1", "ptxas-blackwell")
    assert ptxas_version(device()) == "12.8.93" and ptxas.is_of_triton(GPU)
    assert ptxas_version(device((10, 0))) == ptxas_version(device((12, 0))) == "13.1.93"
    monkeypatch.setenv("TRITON_PTXAS_PATH", program("12.4", "other"))
    assert ptxas_version(device()) == "12.4.93" and not ptxas.is_of_triton(GPU)
    assert ptxas_version(device((12, 0))) == "13.1.93"
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/no/such/program")  # Triton takes its own then
    assert ptxas_version(device()) == "12.8.93"


def test_a_missing_one_has_a_placeholder(device, program, monkeypatch):
    assert ptxas_version(device()) == ptxas_version(device()) == UNKNOWN
    monkeypatch.undo()
    monkeypatch.setattr(ptxas.importlib.util, "find_spec", lambda name: None)
    assert ptxas_version(device()) == UNKNOWN
    assert ptxas_version(torch.device("cpu")) == "none"


@pytest.mark.skipif(sys.platform == "win32", reason="the programs are shell scripts")
def test_what_was_found_with_another_one_is_not_recalled(device, program, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(verify, "device_name", lambda _: "NVIDIA New")
    monkeypatch.setattr(verify, "_driver", lambda _: "1.0")
    monkeypatch.setattr(verify, "_triton", lambda: "3.9.0")
    place = verify.Place("triton_moments", torch.float16, 64, 64, device())
    assert verify.recalled(place) is None
    verify.remember(place, "")
    assert verify.recalled(place) == "" and "ptxas unknown" in verify.describe_pair(GPU)
    program("12.8")
    assert verify.recalled(place) is None and "ptxas 12.8.93" in verify.describe_pair(GPU)
    verify.remember(place, "its dq is off")
    program("12.9")
    assert verify.recalled(place) is None
    program("12.8")
    assert verify.recalled(place) == "its dq is off"


def test_kernels_that_were_seen_right_are_checked_with_another_one(device, program, monkeypatch):
    monkeypatch.setattr(verify, "_triton", lambda: "3.6.0")
    assert verify._seen(device())
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/usr/local/cuda/bin/ptxas")
    assert not verify._seen(GPU)


def test_reading_it_does_not_import_triton():
    code = (
        "import sys, torch; from flashsign.operators import ptxas; ptxas.capability = lambda _: (9, 0);"
        "print(ptxas.ptxas_version(torch.device('cuda', 0))); assert 'triton' not in sys.modules"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.strip()
