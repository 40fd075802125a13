"""What differs between the networks of two cell types, or between two conditions: each edge by its two weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from grn.errors import DataError, UserError
from grn.networks.signed_network import SignedNetwork
from grn.plots.given import RunLike, as_network, weights_of
from grn.plots.names import name_edges
from grn.plots.style import LINES, canvas, draws, note, plain, short, shown
from grn.plots.tables import WEIGHT, Bound, Table

if TYPE_CHECKING:
    from anndata import AnnData

SIGNIFICANT = 0.05
REST = "#c4c4c4"


@draws(named=Bound(1))
def network_difference(
    network: SignedNetwork | AnnData | RunLike | pd.DataFrame,
    first: str,
    second: str,
    *,
    named: int = 12,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """Each edge as a dot, its weight in `first` to the right and in `second` upwards; equal edges are on the diagonal.

    network: a run, its network or a table of edges with a column cell_type, for two cell types; or the table of
    grn.compare, for its two conditions: of these, edges that differ at q <= 0.05 are coloured, else those with names.
    first, second: the types, or conditions.   named: edges with the largest differences, with their names.
    ax, show: as in grn.plots. Raises UserError.
    """
    if first == second:
        raise UserError(f"first and second are both {first!r}; name two that are compared.")
    edges = _both(network, first, second)
    edges = edges[(edges["first"] != 0) | (edges["second"] != 0)]
    axes = canvas(ax, 5.6, 5.4)
    if edges.empty:
        note(axes, "Neither network has edges.")
        return shown(axes, ax, show)
    difference = (edges["second"] - edges["first"]).abs()
    order = np.argsort(-difference.to_numpy(), kind="stable")
    if "q_value" in edges:
        marked = (edges["q_value"] <= SIGNIFICANT).to_numpy()
        order = np.lexsort([-difference, edges["q_value"]])
    else:
        marked = np.zeros(len(edges), dtype=bool)
        marked[order[:named]] = True
    limit = 1.12 * float(edges[["first", "second"]].abs().to_numpy().max())
    axes.axhline(0, color="#dddddd", linewidth=0.8, zorder=0)
    axes.axvline(0, color="#dddddd", linewidth=0.8, zorder=0)
    axes.plot([-limit, limit], [-limit, limit], color="#bbbbbb", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    rest = edges[~marked]
    axes.scatter(rest["first"], rest["second"], s=7, color=REST, linewidths=0, zorder=2, rasterized=len(rest) > 5000)
    strong = edges[marked]
    stronger = (strong["second"].abs() >= strong["first"].abs()).to_numpy()
    for chosen, colour, name in ((stronger, LINES[1], second), (~stronger, LINES[0], first)):
        part = strong[chosen]
        if len(part):
            label = f"stronger in {short(name, 20)}"
            axes.scatter(
                part["first"],
                part["second"],
                s=22,
                color=colour,
                edgecolors="white",
                linewidths=0.4,
                zorder=3,
                label=label,
            )
    names = edges.iloc[order[:named]][["first", "second", "source", "target"]]
    name_edges(axes, names.itertuples(index=False), apart=(0.32 * limit, 0.06 * limit), turn=0.45 * limit)
    axes.set_xlim(-limit, limit)
    axes.set_ylim(-limit, limit)
    axes.set_aspect("equal")
    axes.set_xlabel(f"weight in {short(first)}")
    axes.set_ylabel(f"weight in {short(second)}")
    if len(strong):
        axes.legend(frameon=False, fontsize=8.5, loc="upper left")
    plain(axes, "Edges that differ")
    return shown(axes, ax, show)


def _both(network: object, first: str, second: str) -> pd.DataFrame:
    """Columns source, target, first, second and, of a comparison, q_value."""
    if isinstance(network, pd.DataFrame) and "effect" in network:
        missing = [name for name in (first, second) if f"weight_{name}" not in network]
        if missing:
            known = [str(name).removeprefix("weight_") for name in network if str(name).startswith("weight_")]
            raise UserError(
                f"The table compares no condition {missing[0]!r}, as it has no column 'weight_{missing[0]}'; it has "
                f"{' and '.join(map(repr, known)) or 'none'}."
            )
        table = _comparison(first, second)("network", network)
        types = table["cell_type"].astype(str) if "cell_type" in table else pd.Series("all", index=table.index)
        of_all = table[types == "all"] if (types == "all").any() else table
        if of_all is table and types.nunique() > 1:
            raise DataError(
                f"The table compares several cell types ({', '.join(map(repr, types.unique()[:5]))}), which this "
                "picture would mix; choose the rows of one."
            )
        names = {f"weight_{first}": "first", f"weight_{second}": "second"}
        return of_all[["source", "target", *names, "q_value"]].rename(columns=names)
    found = as_network(network)  # type: ignore[arg-type]
    one, two = (weights_of(found, name)[0] for name in (first, second))
    either = (abs(one) + abs(two)).tocoo()
    values = {"first": one, "second": two}
    ends = {"source": found.genes[either.col], "target": found.genes[either.row]}
    return pd.DataFrame(ends | {name: np.asarray(w[either.row, either.col]).ravel() for name, w in values.items()})


def _comparison(first: str, second: str) -> Table:
    """What the table of grn.compare holds of two conditions."""
    return Table(
        "the table that grn.compare returns",
        texts=("source", "target"),
        numbers={f"weight_{first}": WEIGHT, f"weight_{second}": WEIGHT, "q_value": Bound(0, 1)},
        gaps=("q_value",),
        once=("cell_type", "source", "target"),
    )
