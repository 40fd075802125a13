"""`grn doctor`: what is there, which kernels run and why, and whether they are right."""

from __future__ import annotations

import flashsign.attention.dispatch
import flashsign.check
from flashsign.check import Checked
from grn.cli.main import main


def test_the_machine_and_its_kernels_are_described(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "  torch: " in said and "  CPU: " in said
    assert "  2000 genes in a bag: " in said and "WRONG" not in said


def test_a_kernel_that_computes_wrongly_is_found(capsys, monkeypatch):
    found = [Checked("one", 1.0, "its output is off"), Checked("other", 1.0, "")]
    monkeypatch.setattr(flashsign.check, "check_kernels", lambda dtypes, widths: found)
    planned = flashsign.attention.dispatch.Plan("triton_stream")
    monkeypatch.setattr(flashsign.attention.dispatch, "plan", lambda *_, **__: planned)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "  one: WRONG: its output is off" in said and "  other: ok" in said
