"""The sizes that are run and left out, and the picture."""

from __future__ import annotations

import pandas as pd
import pytest
import scaling
from scaling import CELLS, FEW_GENES, GENES, SIZES, USUAL_CELLS


def test_every_size_is_run_once_and_after_its_halves():
    assert len(SIZES) == len(set(SIZES)) == len(GENES) + len(CELLS) - 1
    order = sorted(SIZES)
    for position, (genes, cells) in enumerate(order):
        assert not {(genes // 2, cells), (genes, cells // 2)} & set(order[position:])


def test_what_took_too_long_is_left_out_with_all_that_is_larger():
    taken: dict[tuple[int, int], float] = {}
    for genes, cells in sorted(SIZES):
        if not scaling.too_long(taken, genes, cells, limit=600):
            taken[genes, cells] = genes * cells * 1.6e-3  # 160 s for 100 genes of 1000 cells
    assert set(taken) == {(100, 500), (100, 1000), (100, 2000), (200, 1000)}
    assert taken[100, 2000] == 320  # so 4000 cells and 400 genes could take more than 600


def test_planted_cells_have_the_size_that_is_asked_for_and_regulators_a_tenth_of_the_genes():
    one = scaling.planted(40, 50)
    assert one.matrix.shape == (50, 40) and one.regulators == ["R1", "R2", "R3", "R4"]
    assert set(one.reference["source"]) <= set(one.regulators)


def test_a_method_is_timed_in_a_process_of_its_own():
    found = scaling.timed("pearson", scaling.planted(20, 30))
    assert set(found) == {"seconds", "cpu_seconds", "peak_mb"} and found["peak_mb"] > 10


def test_the_picture_has_a_line_a_method_that_ends_where_it_was_left_out():
    pytest.importorskip("matplotlib")
    from scaling_picture import lines

    rows = [("grn", genes, cells, 5.0) for genes, cells in SIZES] + [
        ("genie3", 100, 500, 90.0),
        ("pearson", 100, 500, 0),
    ]
    table = pd.DataFrame(rows, columns=["method", "genes", "cells", "cpu_seconds"])
    picture = lines(table, ours="grn", cells=USUAL_CELLS, genes=FEW_GENES)
    points = {line.get_label(): len(line.get_xdata()) for line in picture.axes[1].lines}
    assert points == {"genie3": 1, "pearson": 1, "grn": 4}
    assert min(line.get_ydata().min() for line in picture.axes[1].lines) > 0
