"""The version of ptxas is part of what a checked kernel is remembered by."""

import re

import pytest
import torch

from flashsign.operators import ptxas, verify
from flashsign.operators.ptxas import ptxas_version

pytest.importorskip("triton.backends.nvidia.compiler")
GPU = torch.device("cuda", 0)
SAYS = (
    "#!/bin/sh\necho 'Cuda compilation tools, release {0}, V{0}.93'\necho 'Build "
    "cuda_{0}.r{0}/compiler.1_0'\n"
)
NAMES = "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"


@pytest.fixture
def device(monkeypatch):
    """device(capability): a GPU that is not here."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)

    def make(capability=(8, 0)):
        for module in (ptxas, verify):
            monkeypatch.setattr(module, "capability", lambda _: capability)
        monkeypatch.setattr(torch.version, "hip", None)
        return GPU

    return make


@pytest.fixture
def program(monkeypatch, tmp_path):
    """program(release, name): an assembler that says a version, and that Triton is told to take."""

    def write(release, name=NAMES[0]):
        path = tmp_path / f"{name}-{release}"
        path.write_text(SAYS.format(release))
        path.chmod(0o755)
        monkeypatch.setenv(name, str(path))

    return write


def test_it_is_the_one_that_triton_takes(device, program, monkeypatch):
    own = ptxas_version(device())
    assert re.fullmatch(r"\d+\.\d+\.\d+", own) and ptxas.is_of_triton(GPU)
    program("12.4"), program("12.5", NAMES[1])
    assert ptxas_version(device()) == "12.4.93" and not ptxas.is_of_triton(GPU)
    assert ptxas_version(device((10, 0))) == ptxas_version(device((12, 0))) == "12.5.93"
    monkeypatch.setenv(NAMES[0], "/no/such/program")  # Triton takes its own then
    assert ptxas_version(device()) == own and ptxas.is_of_triton(GPU)


def test_kernels_that_were_seen_right_are_checked_with_another_one(device, program, monkeypatch):
    monkeypatch.setattr(verify, "_triton", lambda: "3.6.0")
    assert verify._seen(device((9, 0)))
    for name in NAMES:
        program("12.4", name)
    assert not verify._seen(GPU)
