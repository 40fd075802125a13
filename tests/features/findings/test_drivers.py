"""Who is named first: regulators whose activity and messenger change together, and none that rests
on a programme.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from grn.features.findings.drivers import OWN, drivers, headline, left_out, named


def table(effects: dict[str, tuple[float, float]], sides=("ctrl", "stim")) -> pd.DataFrame:
    """Rows for both types.

    effects: regulator -> its change of activity and of its own messenger.
    """
    rows = [(of, name, *changes) for of in "BT" for name, changes in effects.items()]
    found = pd.DataFrame(rows, columns=["cell_type", "regulator", "effect", "messenger"])
    found = found.assign(targets=9, q_value=0.001, messenger_p=0.001)
    return found.assign(
        programme="", regulons="collectri", **{f"activity_{side}": 0.0 for side in sides}
    )


ODD = dict.fromkeys(("COMPLEX:NFKB1_REL", "Q03933", "A0A024RBG1"), (9.0, 1.0))
RESPONSE = ODD | {
    "IRF9": (5.0, 0.2),
    "IRF3": (3.0, 0.0),
    "STAT1": (2.0, 0.3),
    "JUN": (4.0, -0.5),
    "STAT2": (2.5, 0.1),
}


@pytest.fixture
def response() -> pd.DataFrame:
    """Of IRF3 the messenger does not change, and of JUN it falls; nobody reads the odd names."""
    found = table(RESPONSE)
    return found.assign(messenger_p=np.where(found["regulator"] == "IRF3", 0.8, 0.001))


def test_regulators_whose_messenger_changes_with_their_activity_are_named_first(response):
    first, second = headline(response).split(" By targets alone: ")
    assert "IRF9 (+5.0), STAT2 (+2.5), STAT1 (+2.0), in 2 of 2 cell types" in first
    assert second == "IRF3 (+3.0)." and not [name for name in ODD if name in first]


def test_where_no_messenger_changes_targets_alone_name_candidates(response):
    unknown = response.drop(columns=["messenger", "messenger_p"])
    for lacking in (unknown, response.assign(messenger_p=0.9)):
        said = headline(lacking)
        assert said.startswith("Candidates") and "IRF9 (+5.0), JUN (+4.0)" in said


def test_without_known_regulons_they_are_candidates(response):
    said = headline(response.assign(regulons=OWN))
    assert said.startswith("Candidates of stim against ctrl: IRF9")
    assert "which are associations" in said


def test_regulators_whose_targets_are_of_one_programme_are_left_out(response):
    programmes = {"IRF9": "ribosomal", "STAT2": "heat_shock"}
    found = response.assign(programme=response["regulator"].map(programmes).fillna(""))
    assert "IRF9" not in headline(found)
    assert set(named(found)["regulator"]) == {"IRF3", "STAT1", "JUN"}
    assert "IRF9 (ribosomal); STAT2 (heat shock)" in left_out(found)
    assert left_out(found.assign(q_value=0.5)) == left_out(response) == ""


def test_a_change_in_few_types_speaks_for_them_alone(response):
    response.loc[response.eval("regulator == 'STAT1' and cell_type == 'T'"), "q_value"] = 0.5
    counted = drivers(response).loc["STAT1", ["types", "mean"]]
    assert counted.tolist() == [1, 1.0], "it counts as none there"
    assert "in 1 to 2 of 2 cell types" in headline(response)


def test_messengers_that_differ_a_little_in_each_of_many_types_do(response):
    little = drivers(response.assign(messenger_p=0.06))
    assert little.loc["IRF9", "messenger"] == 1, "1.88 twice, over the root of two"


def test_types_have_theirs():
    both = table({"SPI1": (4.0, 1.0), "IRF3": (6.0, 0.0), "PAX5": (-3.0, -1.0)}, sides=("others",))
    both["messenger_p"] = np.where(both["regulator"] == "IRF3", 0.5, 1e-4)
    both.loc[both["cell_type"] == "T", "effect"] *= -1
    said = headline(both)
    assert said.startswith("Drivers of each cell type") and said.endswith("B SPI1, IRF3.")
