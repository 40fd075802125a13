"""Programmes: which genes belong to one, by human and mouse symbols in any case."""

from __future__ import annotations

import pandas as pd
import pytest

from grn.cells.genes.programmes import (
    NAMES,
    mostly_of,
    programme_of,
)

HUMAN = {
    "ribosomal": ["RPL3", "RPLP0", "RPS4X", "RPS27A", "RPSA", "RPL13AP5", "FAU", "UBA52"],
    "mitochondrial": ["MT-CO1", "MT.CO1", "MT-ND4L", "MT-RNR2", "MT-TF"],
    "haemoglobin": ["HBA1", "HBB", "HBG2", "Hba.a2"],
    "heat_shock": ["HSPA1A", "HSP90AA1", "HSPE1", "DNAJB1", "HSPH1"],
    "immediate_early": ["FOS", "JUN", "EGR1", "IER2", "ZFP36", "CYR61", "CCN1"],
    "cell_cycle": ["MKI67", "TOP2A", "PCNA", "MCM5", "MLF1IP", "CENPU", "HN1", "JPT1"],
}
MOUSE = {
    "ribosomal": ["Rps6"],
    "mitochondrial": ["mt-Nd1"],
    "haemoglobin": ["Hba-a1", "Hbb-bs", "Hbb-y"],
}
OTHERS = [
    "STAT1",
    "IRF7",
    "RPS6KA1",
    "RPS6KB2",
    "Rps6kl1",
    "RPS19BP1",
    "MT1X",
    "MTOR",
    "HBEGF",
    "HSPG2",
    "SOCS3",
    "NA",
    "",
]


@pytest.mark.parametrize("programme", NAMES)
def test_genes_are_found_in_human_and_mouse_and_in_any_case(programme):
    for name in HUMAN[programme]:
        assert {programme_of(way(name)) for way in (str, str.lower, str.title)} == {programme}, name
    for name in MOUSE.get(programme, ()):
        assert programme_of(name) == programme


def test_what_is_named_alike_is_no_part_of_a_programme():
    assert {name: programme_of(name) for name in OTHERS} == dict.fromkeys(OTHERS, "")


def test_regulators_whose_targets_are_of_one_programme_mostly():
    targets = ["RPL3", "RPS2", "A", "FOS", "MKI67", "RPL4", "B"]
    known = pd.DataFrame(
        {"source": list("xxxyyyz"), "target": targets, "weight": [1, -1, 1, 1, 1, 1, 1]}
    )
    genes = pd.Index(targets)
    assert mostly_of(known, genes) == {"x": "ribosomal"}, (
        "signs do not cancel, and thirds are not most"
    )
    assert mostly_of(known.assign(weight=[0.1, 0.1, 5, 1, 1, 1, 1]), genes) == {}, "by weight"
    assert mostly_of(known, genes.drop(["RPL3"])) == {}, "half of those that are there"
