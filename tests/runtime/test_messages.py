"""Lines while long work goes on."""

import time

import pytest

from grn.runtime.messages import patient


@pytest.mark.parametrize(("every", "some"), [(0.02, True), (60.0, False)])
def test_long_work_says_that_it_goes_on(every, some):
    lines = []
    with patient(lines.append, "Counting", every):
        time.sleep(0.2)
    said = len(lines)
    assert (said > 1) == some and all(line.startswith("Counting, for 0 s") for line in lines)
    time.sleep(0.05)
    assert len(lines) == said, "nothing is said after its end"
