"""The strongest regulators of each cell type, each with a gene that it raises and one that it lowers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from grn.networks.signed_network import SignedNetwork, edge_list
from grn.plots.given import RunLike, as_network
from grn.plots.style import DOWN, INK, MEANING, UP, WITHOUT_MEANING, figure, note, short, whole

if TYPE_CHECKING:
    from anndata import AnnData

LONGEST_GENE = 12  # characters of a gene's name before it is cut in the middle


def cell_type_regulators(
    network: SignedNetwork | AnnData | RunLike | pd.DataFrame, *, types: int = 6, regulators: int = 5
) -> Figure:
    """One panel per cell type: its strongest regulators, each with at most one edge of either sign.

    network: a run, its network (network.h5ad), or a table of edges, with a column cell_type for types.
    types: how many cell types, those with the most cells first; a network without any is drawn over all cells.
    regulators: how many of each type, by their strongest edge in it; one regulator can therefore not fill a panel.

    To the right in blue the target that a regulator raises most, to the left in red the one that it lowers most, with
    |weight| in the bar (unit: uns["grn"]["sign"]); all panels have one scale. Raises UserError where the
    AnnData holds no network.
    """
    network = as_network(network)
    chosen = list(network.by_type.items())[:types] or [("all cells", network.weights)]
    tables = {title: strongest_of_each(edge_list(weights, network.genes), regulators) for title, weights in chosen}
    tables = {title: table for title, table in tables.items() if len(table)}
    if not tables:
        return whole(note(figure(6, 2).subplots(), "The network has no edges."))
    columns = min(3, len(tables))
    rows = -(-len(tables) // columns)
    picture = figure(3.4 * columns, 0.5 + rows * (0.45 + 0.23 * max(len(table) for table in tables.values())))
    panels = list(picture.subplots(rows, columns, squeeze=False).flat)
    widest = max(float(table[["raised_weight", "lowered_weight"]].abs().max(axis=None)) for table in tables.values())
    for panel, (title, table) in zip(panels, tables.items(), strict=False):
        draw_regulators(panel, title, table, widest)
    for panel in panels[len(tables) :]:
        panel.set_axis_off()
    raises, lowers = MEANING if network.signed else WITHOUT_MEANING
    patches = [Patch(color=DOWN, label=lowers), Patch(color=UP, label=raises)]
    picture.legend(handles=patches, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return picture


def strongest_of_each(edges: pd.DataFrame, count: int) -> pd.DataFrame:
    """The `count` regulators with the strongest edges, by that edge's |weight|.

    edges: source, target, weight, sorted by |weight|. Returns source, raised, raised_weight, lowered, lowered_weight:
    each regulator's strongest positive and strongest negative edge ("" and 0 where it has none).
    """
    names = list(dict.fromkeys(edges["source"]))[:count]
    first = {
        part: edges[side].drop_duplicates("source").set_index("source")
        for part, side in (("raised", edges["weight"] > 0), ("lowered", edges["weight"] < 0))
    }
    table = pd.DataFrame({"source": names})
    for part, found in first.items():
        known = found.reindex(names)
        table[part] = known["target"].fillna("").to_numpy()
        table[f"{part}_weight"] = known["weight"].fillna(0.0).to_numpy()
    return table


def draw_regulators(axes: Axes, title: str, table: pd.DataFrame, widest: float) -> None:
    """Regulators in the middle; to both sides a bar, its weight in it and its target behind it.

    table: as from strongest_of_each; widest: the largest |weight| of all panels, whose scale this one shares.
    """
    middle = 0.6 * widest  # half of the space for the names of the regulators
    for row, edges in enumerate(table.itertuples()):
        name = short(edges.source, LONGEST_GENE)
        axes.text(0, row, name, ha="center", va="center", fontsize=8.5, fontweight="bold", color=INK)
        sides = (
            (1, "left", UP, edges.raised, edges.raised_weight),
            (-1, "right", DOWN, edges.lowered, edges.lowered_weight),
        )
        for side, align, colour, target, weight in sides:
            if not target:
                continue
            axes.barh(row, weight, left=side * middle, color=colour, height=0.7)
            end = side * (middle + abs(weight) + 0.04 * widest)
            axes.text(end, row, short(target, LONGEST_GENE), ha=align, va="center", fontsize=8, color=colour)
            # A number needs a bar that is wider than it.
            if abs(weight) > 0.3 * widest:
                inside = side * (middle + abs(weight) / 2)
                axes.text(inside, row, f"{abs(weight):.2f}", ha="center", va="center", fontsize=6.5, color="white")
    # The names of the targets need about as much space as the bars.
    axes.set_xlim(-2.7 * widest, 2.7 * widest)
    axes.set_ylim(len(table) - 0.4, -0.6)
    axes.set_axis_off()
    axes.set_title(short(title), fontsize=10, fontweight="bold", color=INK)
