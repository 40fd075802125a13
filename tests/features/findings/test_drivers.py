"""Who is named first: regulators whose activity and messenger change together, and none that rests
on a programme.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from grn.features.findings.drivers import (
    OWN,
    agreeing,
    by_known,
    drivers,
    headline,
    left_out,
    named,
)

TYPES = ("B", "T")


def table(
    effects: dict[str, tuple[float, float]], sides=("ctrl", "stim"), **columns
) -> pd.DataFrame:
    """Rows for both types.

    effects: regulator -> its change of activity and of its own messenger.
    """
    rows = [
        {"cell_type": of, "regulator": name, "targets": 9, "effect": effect, "messenger": own}
        for of in TYPES
        for name, (effect, own) in effects.items()
    ]
    found = pd.DataFrame(rows).assign(
        q_value=0.001, messenger_p=0.001, programme="", regulons="collectri"
    )
    return found.assign(**{f"activity_{side}": 0.0 for side in sides}).assign(**columns)


RESPONSE = {
    "IRF9": (5.0, 0.2),
    "IRF3": (3.0, 0.0),
    "STAT1": (2.0, 0.3),
    "JUN": (4.0, -0.5),
    "STAT2": (2.5, 0.1),
}


def response(**columns) -> pd.DataFrame:
    found = table(RESPONSE, **columns)
    return found.assign(messenger_p=np.where(found["regulator"] == "IRF3", 0.8, 0.001))


def test_regulators_whose_messenger_changes_with_their_activity_are_named_first():
    said = headline(response())
    first, second = said.split(" By targets alone: ")
    assert "IRF9 (+5.0), STAT2 (+2.5), STAT1 (+2.0), in 2 of 2 cell types" in first
    assert second == "IRF3 (+3.0)." and "JUN" not in said, "its messenger falls"


def test_where_no_messenger_changes_targets_alone_name_candidates():
    for lacking in (
        response(messenger=np.nan, messenger_p=np.nan),
        response().drop(columns=["messenger", "messenger_p"]),
        response().assign(messenger_p=0.9),
    ):
        said = headline(lacking)
        assert said.startswith("Candidates") and "IRF9 (+5.0), JUN (+4.0)" in said
        assert "messenger" not in said


def test_without_known_regulons_they_are_candidates():
    own = response(regulons=OWN)
    assert by_known(response()) and not by_known(own)
    assert headline(own).startswith(
        "Candidates of stim against ctrl: IRF9"
    ) and "which are associations" in headline(own)


def test_regulators_whose_targets_are_of_one_programme_are_left_out():
    found = response()
    programmes = {"IRF9": "ribosomal", "STAT2": "heat_shock"}
    found["programme"] = found["regulator"].map(programmes).fillna("")
    assert "IRF9" not in headline(found)
    assert set(named(found)["regulator"]) == {"IRF3", "STAT1", "JUN"}
    assert "IRF9 (ribosomal); STAT2 (heat shock)" in left_out(found)
    assert left_out(found.assign(q_value=0.5)) == left_out(response()) == left_out(None) == ""


def test_names_that_nobody_reads_are_not_named():
    odd = {name: (9.0, 1.0) for name in ("COMPLEX:NFKB1_REL", "Q03933", "A0A024RBG1")}
    assert drivers(table({**odd, "SPI1": (1.0, 1.0), "E2F1": (1.0, 1.0)})).index.tolist() == [
        "E2F1",
        "SPI1",
    ]


def test_a_change_in_few_types_speaks_for_them_alone():
    found = response()
    found.loc[(found["regulator"] == "STAT1") & (found["cell_type"] == "T"), "q_value"] = 0.5
    assert drivers(found).loc["STAT1", ["types", "mean"]].tolist() == [1, 1.0], (
        "it counts as none there"
    )
    assert "in 1 to 2 of 2 cell types" in headline(found)


def test_messengers_that_differ_a_little_in_each_of_many_types_do():
    found = response(messenger_p=0.06)
    assert drivers(found).loc["IRF9", "messenger"] == 1, "1.88 twice, over the root of two"
    assert (agreeing(response())[response()["regulator"] == "JUN"] < -3).all()


def test_types_have_theirs():
    both = table({"SPI1": (4.0, 1.0), "IRF3": (6.0, 0.0), "PAX5": (-3.0, -1.0)}, sides=("others",))
    both["messenger_p"] = np.where(both["regulator"] == "IRF3", 0.5, 1e-4)
    both.loc[both["cell_type"] == "T", "effect"] *= -1
    assert headline(both).endswith(
        "by the activity of their known targets (collectri): B SPI1, IRF3."
    )
    assert headline(both).startswith("Drivers of each cell type")


@pytest.mark.parametrize("sides", [("ctrl", "stim"), ("others",)])
def test_where_nothing_differs_that_is_said(sides):
    nothing = table(RESPONSE, sides=sides, q_value=0.9)
    assert headline(nothing).startswith("No activity of regulators differs between")
    assert headline(None) == ""
