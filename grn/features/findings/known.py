"""The certain edges of a run beside known pairs with signs:
confirmed, contradicted in sign, new.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from grn.cells.genes.programmes import programmes_of
from grn.evidence.q_values import SIGNIFICANT
from grn.features.findings.summary import ALL, certain

KNOWN = "known.csv"  # of a run
CONFIRMED, CONTRADICTED, NEW, NOT_CERTAIN = OUTCOMES = (
    "confirmed",
    "contradicted",
    "new",
    "not certain",
)
PAIR = ["source", "target"]
NAMED = 3  # new targets of a regulator that a table names


def beside_known(
    edges: pd.DataFrame,
    of_types: pd.DataFrame,
    known: pd.DataFrame,
    regulators: Sequence[str],
    genes: Sequence[str],
) -> pd.DataFrame:
    """Columns cell_type, source, target, weight, q_value, known: the certain edges, over all cells
    first, each group by rising q-value; then the known pairs of these genes that are not certain
    over all cells, without weight.

    edges, of_types: of a run, with q-values; of_types has a column cell_type.
    known: source, target, weight, of which the sign counts.
    """
    there = (
        known["source"].isin(regulators)
        & known["target"].isin(genes)
        & (known["source"] != known["target"])
    )
    pairs = pd.MultiIndex.from_frame(known.loc[there & (known["weight"] != 0), PAIR]).unique()
    found = pd.concat([certain(edges).assign(cell_type=ALL), certain(of_types)], ignore_index=True)
    found = found[["cell_type", *PAIR, "weight", "q_value"]].assign(known=said_of(found, known))
    rest = pairs.difference(
        pd.MultiIndex.from_frame(found.loc[found["cell_type"] == ALL, PAIR])
    ).to_frame(index=False)
    return pd.concat([found, rest.assign(cell_type=ALL, known=NOT_CERTAIN)], ignore_index=True)


def said_of(edges: pd.DataFrame, known: pd.DataFrame) -> np.ndarray:
    """Return what known pairs say of each edge: confirmed (the same sign), contradicted (the
    other), new (not listed); "" of a listed pair whose weight is 0.
    """
    sign = np.sign(known[known["weight"] != 0].drop_duplicates(PAIR).set_index(PAIR)["weight"])
    own = sign.reindex(pd.MultiIndex.from_frame(edges[PAIR])).to_numpy()
    weight = np.sign(edges["weight"]).to_numpy()
    return np.select(
        [np.isnan(own), own == weight, own == -weight], [NEW, CONFIRMED, CONTRADICTED], ""
    )


def of_groups(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return how many rows of `beside_known` are confirmed, contradicted, new and not certain: a
    row a value of `by`, all cells first, then in the order of their certain edges.
    """
    counts = table.groupby([by, "known"], sort=False, observed=True).size().unstack(fill_value=0)
    counts = counts.reindex(columns=list(OUTCOMES), fill_value=0)
    fewer = counts[NOT_CERTAIN] - counts.sum(axis=1)
    return counts.iloc[np.lexsort([fewer, counts.index != ALL])]


def known_sentence(table: pd.DataFrame, whose: str, regulators: int, genes: int) -> str:
    """Return a sentence on what the known network says of the certain edges over all cells, and
    what chance would.
    """
    count = (
        table.loc[table["cell_type"] == ALL, "known"]
        .value_counts()
        .reindex(list(OUTCOMES), fill_value=0)
    )
    confirmed, contradicted, new, others = count.tolist()
    edges, listed = confirmed + contradicted + new, confirmed + contradicted + others
    if not edges:
        return (
            f"{whose} lists {others} pairs of these genes. No edge is certain over all cells, so "
            "it confirms none."
        )
    chance = edges * listed / max(regulators * (genes - 1), 1)
    return (
        f"Of {edges} certain edges over all cells, {whose} lists {confirmed + contradicted} "
        f"({chance:.1f} by chance): {confirmed} with the same sign, {contradicted} with the other; "
        f"{new} are new. It lists {others} other pairs of these genes, which are not certain in "
        "these cells."
    )


def of_regulators(
    table: pd.DataFrame, activity: pd.DataFrame | None
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return what the data add to each regulator that the known network lists or that has certain
    edges, over all cells. Genes of common programmes are not named among its new targets.

    activity: of regulators by cell type, as in activity.csv; None: the last column is empty.
    """
    every = table[table["cell_type"] == ALL]
    added = every[(every["known"] == NEW) & (programmes_of(every["target"]) == "")]
    added = added.groupby("source", sort=False)["target"]
    named = added.agg(lambda targets: ", ".join(targets.head(NAMED)))
    active = {}
    if activity is not None:
        sure = activity[activity["q_value"] <= SIGNIFICANT].sort_values(
            "effect", key=abs, ascending=False
        )
        for row in sure.drop_duplicates("regulator").itertuples():
            active[row.regulator] = f"{row.effect:+.1f} in {row.cell_type}"
    rows = []
    for name, confirmed, contradicted, new, others in of_groups(every, "source").itertuples():
        numbers = (confirmed + contradicted + others, confirmed, contradicted, new)
        rows.append((str(name), named.get(name, ""), active.get(name, ""), *map(str, numbers)))
    head = ["regulator", "most certain new targets", "activity differs most", "known targets here"]
    return [*head, CONFIRMED, CONTRADICTED, NEW], rows
