"""A short version of benchmarks/fuzz.py: damaged files are refused in a sentence, or say what they said before."""

from __future__ import annotations

from fuzz import KINDS, fuzz, wrong


def test_no_damaged_file_ends_in_a_fault_and_no_other_model_is_accepted(tmp_path):
    found = fuzz(tmp_path, 6 * len(KINDS), first=100_000)
    bad = wrong(found)
    assert bad.empty, bad.to_string()
    assert len(found) == 6 * len(KINDS) and (found["outcome"] == "refused").mean() > 0.3
