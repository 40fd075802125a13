"""The certain edges of a run beside known pairs with signs: confirmed, contradicted in sign, new."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from grn.analysis.summary import ALL, certain

KNOWN = "known.csv"  # of a run
CONFIRMED, CONTRADICTED, NEW, NOT_CERTAIN = STATES = ("confirmed", "contradicted", "new", "not certain")
NAMED = 3  # new targets of a regulator that a table names


def beside_known(
    edges: pd.DataFrame, of_types: pd.DataFrame, known: pd.DataFrame, regulators: Sequence[str], genes: Sequence[str]
) -> pd.DataFrame:
    """Columns cell_type, source, target, weight, q_value, known: the certain edges, over all cells first, each group by
    rising q-value; then the known pairs of these genes that are not certain over all cells, without weight.

    edges, of_types: of a run, with q-values; of_types has a column cell_type.   known: source, target, weight, of which
    the sign counts.
    """
    there = known["source"].isin(regulators) & known["target"].isin(genes) & (known["source"] != known["target"])
    pairs = known[there & (known["weight"] != 0)].drop_duplicates(["source", "target"])
    sign = np.sign(pairs.set_index(["source", "target"])["weight"])
    columns = ["cell_type", "source", "target", "weight", "q_value"]
    found = pd.concat([certain(edges).assign(cell_type=ALL), certain(of_types)], ignore_index=True)[columns]
    own = sign.reindex(pd.MultiIndex.from_frame(found[["source", "target"]])).to_numpy()
    same = own == np.sign(found["weight"])
    found["known"] = np.where(np.isnan(own), NEW, np.where(same, CONFIRMED, CONTRADICTED))
    seen = found.loc[found["cell_type"] == ALL, ["source", "target"]]
    rest = sign.index.difference(pd.MultiIndex.from_frame(seen)).to_frame(index=False)
    return pd.concat([found, rest.assign(cell_type=ALL, known=NOT_CERTAIN)], ignore_index=True)


def of_groups(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """How many rows of `beside_known` are confirmed, contradicted, new and not certain: a row a value of `by`, in the
    order of their certain edges."""
    counts = table.groupby([by, "known"], sort=False, observed=True).size().unstack(fill_value=0)
    counts = counts.reindex(columns=list(STATES), fill_value=0)
    return counts.loc[counts.drop(columns=NOT_CERTAIN).sum(axis=1).sort_values(ascending=False, kind="stable").index]


def known_sentence(table: pd.DataFrame, whose: str, regulators: int, genes: int) -> str:
    """What the known network says of the certain edges over all cells, and what chance would."""
    count = table.loc[table["cell_type"] == ALL, "known"].value_counts().reindex(list(STATES), fill_value=0)
    confirmed, contradicted, new, others = count.tolist()
    edges, listed = confirmed + contradicted + new, confirmed + contradicted + others
    chance = edges * listed / max(regulators * (genes - 1), 1)
    return (
        f"Of {edges} certain edges over all cells, {whose} lists {confirmed + contradicted} ({chance:.1f} by chance): "
        f"{confirmed} with the same sign, {contradicted} with the other; {new} are new. "
        f"It lists {others} other pairs of these genes, which are not certain in these cells."
    )


def of_regulators(table: pd.DataFrame) -> tuple[list[str], list[tuple[str, ...]]]:
    """What the data add to each regulator that the known network lists or that has certain edges, over all cells."""
    every = table[table["cell_type"] == ALL]
    added = every[every["known"] == NEW].groupby("source", sort=False)["target"]
    named = added.agg(lambda targets: ", ".join(targets.head(NAMED)))
    rows = [
        (str(name), *(str(number) for number in counts), named.get(name, ""))
        for name, *counts in of_groups(every, "source").itertuples()
    ]
    return ["regulator", *STATES, "most certain new targets"], rows
