"""Who drives: which regulators are named first, by the activity that known regulons give them, and
which are not.

Known regulons (CollecTRI, or a file) say what a regulator does in other experiments; the certain
edges of a run are associations among the cells that they explain, so regulators found by them are
called candidates. A regulator whose targets are mostly of one programme
(grn/cells/genes/programmes.py)
is not named: its activity is that programme's. Those whose own messenger changes with their
activity come first: regulators share targets, and many that do not change at all (IRF3, REL) look
active beside one that does (IRF9, STAT1, IRF7, whose messengers interferon raises). Where none
does, known regulons name candidates, too: after a knock-out of IRF1, whose targets are not among
the genes, they name SPI1 and ESR1 (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import ndtri

from grn.cells.genes.programmes import in_words
from grn.evidence.q_values import SIGNIFICANT

ACTIVITY = "activity.csv"  # of a run
CELLS = (
    "Cells are no replicates: with cells as units, intervals are too narrow for a statement about "
    "other donors. A column of donors (data.group_key) makes these the units."
)
OWN = "certain edges of this run"  # in the column regulons of activity.csv
NAMED, BESIDE = (
    7,
    3,
)  # regulators in the sentence about two conditions: with their messenger, and by targets alone
# Complexes, and proteins by their UniProt accessions, in tables of OmniPath
UNREAD = r"COMPLEX:.*|[OPQ][0-9][A-Z0-9]{3}[0-9]|[A-NR-Z][0-9](?:[A-Z][A-Z0-9]{2}[0-9]){1,2}"
OF_TYPE, TYPES = 2, 6  # regulators of each type, and types, in the sentence about types
SURE, MOST = (
    2.58,
    8.0,
)  # normal deviate of a messenger that changes (p .01); one type counts no more than this
LEAST = 0.15  # of the largest change: who changes less is not named
# of the types in which a regulator must differ, of those where the most frequent one does
SHARE = 1 / 3


def by_known(activity: pd.DataFrame) -> bool:
    """Return whether activities are by known regulons."""
    return not (activity["regulons"] == OWN).any()


def whose(activity: pd.DataFrame) -> str:
    return str(activity["regulons"].iloc[0])


def sides_of(activity: pd.DataFrame) -> tuple[str, str] | None:
    """The first and the second condition that are compared; None where types are compared with
    other cells.
    """
    sides = [
        str(name).removeprefix("activity_")
        for name in activity
        if str(name).startswith("activity_")
    ]
    return (sides[0], sides[1]) if len(sides) == 2 else None


def of_programmes(activity: pd.DataFrame) -> dict[str, str]:
    """Regulator -> the programme that its activity rests on; other regulators are left out."""
    if "programme" not in activity:
        return {}
    resting = activity[
        (activity["programme"].astype(object).fillna("") != "")
        & ~activity["regulator"].str.fullmatch(UNREAD)
    ]
    resting = resting.drop_duplicates("regulator")
    return dict(zip(resting["regulator"], resting["programme"], strict=True))


def named(activity: pd.DataFrame) -> pd.DataFrame:
    """The rows of regulators that may be named: their activity does not rest on one programme, and
    their names are symbols of single genes.
    """
    unread = activity["regulator"].str.fullmatch(UNREAD)
    return activity[~unread & ~activity["regulator"].isin(list(of_programmes(activity)))]


def agreeing(activity: pd.DataFrame) -> pd.Series:
    """Of each row, how certain it is that the regulator's own messenger changes as its activity
    does, as a normal deviate, negative where it changes the other way; NaN where that is not known.
    """
    if "messenger" not in activity:
        return pd.Series(np.nan, activity.index)
    p = activity["messenger_p"].clip(lower=1e-300)
    return np.sign(activity["messenger"] * activity["effect"]) * ndtri(1 - p / 2).clip(upper=MOST)


def drivers(activity: pd.DataFrame) -> pd.DataFrame:
    """Of two conditions, the regulators by the falling size of `mean`, the mean change over all
    types, of which those count that are certain; `types` in which they are, and `messenger`: 1 or
    -1 where their own messenger changes the same or the other way, by the sum of `agreeing` over
    types, else 0.

    Regulators that differ in few types are left out, so that one type does not speak for all.
    Source of the sum:
    Stouffer et al. 1949.
    """
    sure = named(activity)
    sure = sure[sure["q_value"] <= SIGNIFICANT]
    of_each = sure.assign(own=agreeing(sure)).groupby("regulator")
    found = of_each.agg(
        types=("effect", "size"), mean=("effect", "sum"), own=("own", "sum"), known=("own", "count")
    )
    if len(found):
        found = found[found["types"] >= SHARE * found["types"].max()]
    own = found["own"] / np.sqrt(found["known"].clip(lower=1))
    found = found.assign(
        mean=found["mean"] / activity["cell_type"].nunique(),
        messenger=np.sign(own).where(own.abs() >= SURE, 0),
    )
    return found.drop(columns=["own", "known"]).iloc[
        np.argsort(-found["mean"].abs().to_numpy(), kind="stable")
    ]


def headline(activity: pd.DataFrame | None) -> str:
    """The sentence that names the answer: of two conditions, what drives the change; of types, what
    each is made by.
    """
    if activity is None:
        return ""
    known, sides = by_known(activity), sides_of(activity)
    if known:
        who, how = "Drivers", f"by the activity of their known targets ({whose(activity)})"
    else:
        who = "Candidates"
        how = "by the activity of their targets in this run, which are associations"
    if sides is None:
        return _of_types(activity, who, how)
    found = drivers(activity)
    if found.empty:
        return f"No activity of regulators differs between {sides[0]} and {sides[1]} ({how})."
    with_own, alone = _in_turn(found)
    first = with_own if len(with_own) else alone.head(NAMED)
    if first.empty:
        return (
            f"No regulator's messenger changes with its activity between {sides[0]} and {sides[1]} "
            f"({how})."
        )
    low, high, types = first["types"].min(), first["types"].max(), activity["cell_type"].nunique()
    among = f"{low}" if low == high else f"{low} to {high}"
    own = ", and over all types their own mRNA changes with it"
    if not len(with_own):
        # regulators share targets, so that these alone name others than the cause, too
        who, own, how = "Candidates", "", how.replace("targets", "targets alone", 1)
    where = _where(activity, list(first.index))
    said = (
        f"{who} of {sides[1]} against {sides[0]}: {_changes(first)}, in {among} of {types} "
        f"cell types{where}, {how}{own}. In brackets: mean differences of activity."
    )
    rest = alone.head(BESIDE) if len(with_own) else alone.head(0)
    return f"{said} By targets alone: {_changes(rest)}." if len(rest) else said


def _where(activity: pd.DataFrame, names: Sequence[str]) -> str:
    """In which cell types the activity of these regulators differs most and least, in words; ""
    where it differs in one or two.
    """
    rows = activity[activity["regulator"].isin(names) & (activity["q_value"] <= SIGNIFICANT)]
    size = rows["effect"].abs().groupby(rows["cell_type"]).sum().sort_values(ascending=False)
    if len(size) < 3:
        return ""
    return f", most in {size.index[0]} and {size.index[1]}, least in {size.index[-1]}"


def _in_turn(found: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of `drivers`, those whose own messenger changes with them, and those of which it does not or
    is not known.
    """
    found = found[found["mean"].abs() >= LEAST * found["mean"].abs().max()]
    return found[found["messenger"] > 0].head(NAMED), found[found["messenger"] == 0]


def to_draw(activity: pd.DataFrame) -> pd.DataFrame:
    """The rows of `named`; of two conditions, regulators in the order of the headline, then the
    others.
    """
    rows = named(activity)
    if sides_of(activity) is None:
        return rows
    first = list(pd.concat(_in_turn(drivers(activity))).index)
    place = (
        rows["regulator"]
        .map({name: number for number, name in enumerate(first)})
        .fillna(len(first))
    )
    return rows.iloc[np.lexsort([place, pd.factorize(rows["cell_type"])[0]])]


def _changes(found: pd.DataFrame) -> str:
    return ", ".join(f"{name} ({change:+.1f})" for name, change in found["mean"].items())


def _of_types(activity: pd.DataFrame, who: str, how: str) -> str:
    found = named(activity)
    found = found[(found["q_value"] <= SIGNIFICANT) & (found["effect"] > 0)]
    own = agreeing(found).fillna(0)
    found = found[own > -SURE].assign(own=own >= SURE)
    found = found.sort_values(["own", "effect"], ascending=False, kind="stable")
    found = found.groupby("cell_type", sort=False).head(OF_TYPE)
    names = [
        name for name in dict.fromkeys(activity["cell_type"]) if name in set(found["cell_type"])
    ]
    if not names:
        return f"No activity of regulators differs between cell types ({how})."
    said = "; ".join(
        f"{name} {', '.join(found.loc[found['cell_type'] == name, 'regulator'])}"
        for name in names[:TYPES]
    )
    others = len(names) - TYPES
    more = f"; and {others} more type{'s' * (others > 1)}" if others > 0 else ""
    return f"{who} of each cell type, {how}: {said}{more}."


def left_out(activity: pd.DataFrame | None) -> str:
    """Which regulators whose activity differs are not named, and why; "" where none is."""
    if activity is None:
        return ""
    differs = set(activity.loc[activity["q_value"] <= SIGNIFICANT, "regulator"])
    resting = {
        name: programme for name, programme in of_programmes(activity).items() if name in differs
    }
    if not resting:
        return ""
    said = "; ".join(
        f"{_listed([name for name, of in resting.items() if of == programme])} "
        f"({in_words(programme)})"
        for programme in dict.fromkeys(resting.values())
    )
    one = len(resting) == 1
    return (
        f"Not named, as more than half of the weight of {'its' if one else 'their'} targets is in "
        f"one common programme: {said}."
    )


def _listed(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
