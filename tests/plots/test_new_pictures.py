"""Pictures of networks and cells: whatever they are given of a run, they draw what is in it."""

from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.text import Text

import grn
from grn.edges.signed_network import signed_network
from grn.plots.given import as_network, edges_of
from grn.plots.style import DOWN, UP
from grn.runtime.errors import UserError

OF_NETWORKS = [
    "clustered_heatmap",
    "network_graph",
]


def texts(picture) -> set[str]:
    return {text.get_text() for text in picture.figure.findobj(Text)}


@pytest.fixture
def typed():
    return pd.DataFrame(
        [
            ("A", "x", 0.9, 1.0, "T1"),
            ("A", "x", -0.8, 0.9, "T2"),
            ("A", "y", 0.3, 0.8, "T1"),
            ("B", "y", 0.7, 0.5, "T2"),
            ("B", "A", -0.2, 0.5, "T1"),
        ],
        columns=["source", "target", "weight", "confidence", "cell_type"],
    )


@pytest.mark.parametrize("name", OF_NETWORKS)
@pytest.mark.parametrize("form", ["run", "network", "signed network", "edges"])
def test_a_network_is_drawn_from_whatever_holds_it(run, name, form):
    typed = pd.read_parquet(run.folder / "edges_by_type.parquet")
    both = pd.concat(
        [run.edges, typed.assign(cell_type=typed["cell_type"].astype(str))], ignore_index=True
    )
    given = {
        "run": run,
        "network": run.network,
        "signed network": signed_network(run.network),
        "edges": both,
    }[form]
    picture = getattr(grn.plots, name)(given)
    axes = picture.axes if isinstance(picture, Figure) else [picture]
    assert axes and not any("has no edges" in text for text in texts(axes[0]))


def test_all_forms_hold_the_same_weights(run):
    (of_network, _, _), (of_run, _, _) = edges_of(run.network, None), edges_of(run, None)
    key = ["source", "target"]
    both = of_run[of_run["weight"] != 0].merge(of_network, on=key, suffixes=("", "_other"))
    assert len(both) == len(of_network)
    np.testing.assert_allclose(both["weight"], both["weight_other"], rtol=1e-6)
    again = as_network(of_run)
    for edge in of_run.head(5).itertuples():
        value = again.weights[again.genes.get_loc(edge.target), again.genes.get_loc(edge.source)]
        assert value == pytest.approx(edge.weight)
    assert "q_value" in of_run and "q_value" not in of_network
    of_type, whose, _ = edges_of(run, "type 2")
    assert whose == "type 2" and not of_type.equals(of_run)


def test_arrows_raise_bars_lower_and_only_edges_of_the_chosen_genes_are_drawn(typed):
    axes = grn.plots.network_graph(typed[typed["cell_type"] == "T1"], "A", cell_type="T1")
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    assert [to_hex(arrow.get_edgecolor()) for arrow in arrows] == [DOWN, UP, UP]
    assert {"A", "x", "y", "B"} <= texts(axes)
    widths = [arrow.get_linewidth() for arrow in arrows]
    assert widths == sorted(widths), "the strongest is the thickest, and drawn on top"


def test_a_network_is_drawn_as_far_as_it_is_certain(typed):
    edges = typed[typed["cell_type"] == "T1"].assign(q_value=[0.001, 0.2, 0.04])
    arrows = {
        certain: [
            each.get_linestyle() for each in grn.plots.network_graph(edges, certain=certain).patches
        ]
        for certain in (True, False)
    }
    assert [len(each) for each in arrows.values()] == [2, 3] and len(set(arrows[True])) == 1
    assert len(set(map(str, arrows[False]))) == 2, "an uncertain edge is dashed"
    dots = grn.plots.clustered_heatmap(edges).lines[0].get_xydata()
    assert len(dots) == 2, "of the certain edges"


@pytest.mark.parametrize("layout", [None, "constrained", "tight"])
def test_the_bar_of_a_heat_map_in_given_axes_covers_no_name_and_all_is_inside(layout):
    generator = np.random.default_rng(0)
    pairs = [(f"REGULATOR{i}", f"TARGET{j}") for i in range(12) for j in range(20)]
    edges = pd.DataFrame(pairs, columns=["source", "target"])
    edges = edges.assign(weight=generator.standard_normal(len(edges)))
    picture = Figure(figsize=(14, 5), layout=layout)
    panels = picture.subplots(1, 2)
    for axes in panels:
        grn.plots.clustered_heatmap(edges, ax=axes)
    picture.draw_without_rendering()
    bars = [each for each in picture.findobj(Axes) if each.get_ylabel().startswith("weight")]
    assert len(bars) == 2
    boxes = [bar.get_window_extent() for bar in bars]
    for axes in panels:
        names = [name.get_window_extent() for name in axes.get_yticklabels()]
        assert not any(box.overlaps(name) for box in boxes for name in names)
        assert axes.title.get_window_extent().y1 <= picture.bbox.y1


def test_layers_are_side_by_side_with_their_own_targets_and_signs(run):
    picture = grn.plots.attention_layers(run, regulators=3, targets=5)
    maps = [axes for axes in picture.axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in maps] == ["Block 1", "Block 2"]
    regulators = set(run.network.var_names[run.network.var["is_regulator"]])
    for layer, axes in enumerate(maps):
        rows, columns = (
            [tick.get_text() for tick in ticks]
            for ticks in (axes.get_yticklabels(), axes.get_xticklabels())
        )
        assert set(rows) <= regulators and (set(columns) <= regulators) == (layer == 0)
        names, weights = run.network.var_names, run.network.varp[f"grn_layer{layer}"].T.toarray()
        weights = pd.DataFrame(weights, index=names, columns=names)
        np.testing.assert_allclose(
            axes.images[0].get_array(), weights.loc[rows, columns].to_numpy()
        )
    with pytest.raises(UserError, match="layers"):
        grn.plots.attention_layers(anndata.AnnData(np.ones((2, 2))))
    own = Figure()
    panels = own.subplots(1, 2)
    assert grn.plots.attention_layers(run, ax=panels) is own
    assert [len(axes.images) for axes in panels] == [1, 1]
    with pytest.raises(UserError, match="2 layers"):
        grn.plots.attention_layers(run, ax=panels[:1])


def test_a_volcano_colours_what_the_members_agree_on():
    table = pd.DataFrame(
        {
            "gene": ["A", "up", "down", "unsure"],
            "change": 0.0,
            "effect": [-3.0, 0.5, -0.4, 0.6],
            "sd": [0.0, 0.1, 0.05, 0.5],
            "before": 1.0,
            "perturbed": [True, False, False, False],
        }
    )
    axes = grn.plots.perturbation_volcano(table)
    dots = axes.collections[0]
    np.testing.assert_allclose(dots.get_offsets(), [[0.5, 5], [-0.4, 8], [0.6, 1.2]])
    assert [to_hex(colour) for colour in dots.get_facecolors()[:2]] == [UP, DOWN]
    assert {"up", "down", "1 rise", "1 fall"} <= texts(axes) and not {"A", "unsure"} & texts(axes)


def test_genes_that_are_not_there_are_refused(typed):
    for draw in (
        lambda: grn.plots.network_graph(typed, "a", cell_type="T1"),
        lambda: grn.plots.clustered_heatmap(typed, cell_type="T1", regulators=["A", "a"]),
    ):
        with pytest.raises(UserError, match="'a'; did you mean 'A'"):
            draw()


def test_networks_of_several_types_are_not_drawn_as_one(typed, run):
    for draw in (grn.plots.network_graph, grn.plots.clustered_heatmap):
        with pytest.raises(UserError, match="cell types alone"):
            draw(typed)
        assert draw(typed[typed["cell_type"] == "T1"])
