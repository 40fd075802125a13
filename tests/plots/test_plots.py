"""Every picture shows what it was given, from awkward labels and from none."""

from __future__ import annotations

import sys

import anndata
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

import grn
from grn.edges.signed_network import signed_network
from grn.plots import (
    activity_heatmap,
    attention_layers,
    cell_type_genes,
    clustered_heatmap,
    confusion_matrix,
    network_graph,
    perturbation_volcano,
    precision_recall_curves,
    training_curves,
)
from grn.plots.given import as_network, edges_of
from grn.plots.style import DOWN, UP, save, whole
from grn.runtime.errors import UserError

OF_NETWORKS = [clustered_heatmap, network_graph]
CURVES = {
    "network": pd.DataFrame({"recall": [0.5, 1.0], "precision": [1.0, 0.4]}),
    "$ridge$": pd.DataFrame({"recall": [1.0], "precision": [0.25]}),
}
ACTIVITY = pd.DataFrame(
    [
        ("T1", "A", 2.0, 1.5, 2.5, 0.001),
        ("T1", "B", 0.5, -0.5, 1.5, 0.4),
        ("T2", "A", -1.0, -1.25, -0.75, 0.01),
    ],
    columns=["cell_type", "regulator", "effect", "low", "high", "q_value"],
)


def texts(picture) -> set[str]:
    return {text.get_text() for text in whole(picture).findobj(Text)}


@pytest.fixture
def edges():
    return pd.DataFrame(
        [("A/B", "x", 0.9), ("A/B", "y", -0.5), ("$C$", "z", 0.4), ("C", "x", -0.1)],
        columns=["source", "target", "weight"],
    )


# Networks


@pytest.mark.parametrize("draw", OF_NETWORKS)
@pytest.mark.parametrize(
    "form",
    [lambda run: run, lambda run: run.network, lambda run: signed_network(run.network)],
    ids=["run", "network", "signed network"],
)
def test_a_network_is_drawn_from_whatever_holds_it(run, draw, form):
    assert not any("has no edges" in text for text in texts(draw(form(run))))


def test_all_forms_hold_the_same_weights(run):
    (of_network, _, _), (of_run, _, _) = edges_of(run.network, None), edges_of(run, None)
    both = of_run[of_run["weight"] != 0].merge(of_network, on=["source", "target"])
    assert len(both) == len(of_network)
    np.testing.assert_allclose(both["weight_x"], both["weight_y"], rtol=1e-6)
    again = as_network(of_run)
    expected = run.network.varp["grn"].toarray()
    place = run.network.var_names.get_indexer(again.genes)
    np.testing.assert_allclose(again.weights.toarray(), expected[np.ix_(place, place)], rtol=1e-6)
    of_type, whose, _ = edges_of(run, "type 2")
    assert whose == "type 2" and not of_type.equals(of_run)


def test_edges_of_the_chosen_genes_are_arrows_in_the_colour_of_their_sign(edges):
    """The strongest is the thickest, and drawn on top."""
    axes = network_graph(edges, "A/B")
    assert [to_hex(arrow.get_edgecolor()) for arrow in axes.patches] == [DOWN, UP]
    widths = [arrow.get_linewidth() for arrow in axes.patches]
    assert widths == sorted(widths) and {"A/B", "x", "y"} <= texts(axes)


def test_a_network_is_drawn_as_far_as_it_is_certain(edges):
    edges["q_value"] = [0.001, 0.2, 0.04, 0.2]
    certain, every = (
        [str(arrow.get_linestyle()) for arrow in network_graph(edges, certain=certain).patches]
        for certain in (True, False)
    )
    assert (len(certain), len(set(certain))) == (2, 1)
    assert (len(every), len(set(every))) == (4, 2), "an uncertain edge is dashed"
    dots = clustered_heatmap(edges).lines[0].get_xydata()
    assert len(dots) == 2, "of the certain edges"


@pytest.mark.parametrize("kind", ["category", "string"])
@pytest.mark.parametrize("draw", OF_NETWORKS)
def test_names_are_taken_in_every_form(edges, draw, kind):
    awkward = edges.astype({"source": kind, "target": kind}).set_axis([5] * 4)
    assert texts(draw(awkward)) == texts(draw(edges))


@pytest.mark.parametrize("draw", OF_NETWORKS)
def test_networks_of_several_types_are_not_drawn_as_one(edges, draw):
    typed = edges.assign(cell_type=["T1", "T1", "T2", "T2"])
    with pytest.raises(UserError, match="cell types alone"):
        draw(typed)
    assert draw(typed[typed["cell_type"] == "T1"])


@pytest.mark.parametrize("count", [1, 2, 30])
def test_boxes_of_genes_do_not_overlap(count):
    draw = np.random.default_rng(count)
    sources = draw.choice(["SPI1", "A-LONG-REGULATOR", "R3"], count)
    edges = pd.DataFrame({"source": sources, "target": [f"HLA-{n}" for n in range(count)]})
    axes = network_graph(edges.assign(weight=draw.normal(size=count), q_value=0.01))
    axes.figure.canvas.draw()
    boxes = [text.get_window_extent().padded(5) for text in axes.texts]
    assert len(boxes) == count + len(set(sources))
    for number, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[number + 1 :])


@pytest.mark.parametrize("layout", [None, "constrained", "tight"])
def test_the_bar_of_a_heat_map_in_given_axes_covers_no_name_and_all_is_inside(layout):
    edges = pd.DataFrame(
        [(f"REGULATOR{i}", f"TARGET{j}") for i in range(12) for j in range(20)],
        columns=["source", "target"],
    ).assign(weight=np.random.default_rng(0).standard_normal(240))
    picture = Figure(figsize=(14, 5), layout=layout)
    panels = picture.subplots(1, 2)
    for axes in panels:
        clustered_heatmap(edges, ax=axes)
    picture.draw_without_rendering()
    bars = [each for each in picture.findobj(Axes) if each.get_ylabel().startswith("weight")]
    assert len(bars) == 2
    for axes in panels:
        names = [name.get_window_extent() for name in axes.get_yticklabels()]
        assert not any(bar.get_window_extent().overlaps(name) for bar in bars for name in names)
        assert axes.title.get_window_extent().y1 <= picture.bbox.y1


def test_layers_are_side_by_side_with_their_own_targets_and_signs(run):
    own = Figure()
    panels = own.subplots(1, 2)
    assert attention_layers(run, regulators=3, targets=5, ax=panels) is own
    names = run.network.var_names
    regulators = set(names[run.network.var["is_regulator"]])
    for layer, axes in enumerate(panels):
        rows, columns = (
            [tick.get_text() for tick in ticks]
            for ticks in (axes.get_yticklabels(), axes.get_xticklabels())
        )
        assert set(rows) <= regulators and (set(columns) <= regulators) == (layer == 0)
        weights = pd.DataFrame(run.network.varp[f"grn_layer{layer}"].T.toarray(), names, names)
        np.testing.assert_allclose(axes.images[0].get_array(), weights.loc[rows, columns])
    with pytest.raises(UserError, match="layers"):
        attention_layers(anndata.AnnData(np.ones((2, 2))))


# Tables


def test_the_confusion_matrix_writes_counts_and_colours_shares():
    labels = ["CD4+/CD25 T Reg", "a type with a very long name that goes on", "$x_1$ & <b>"]
    axes = confusion_matrix(pd.DataFrame([[8, 2, 0], [0, 5, 0], [0, 0, 0]], labels, labels))
    assert [text.get_text() for text in axes.texts] == ["8", "2", "5"]
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.8, 0.2, 0], [0, 1, 0], [0, 0, 0]])
    assert labels[0] in texts(axes)


def test_activities_have_their_interval_and_uncertain_ones_are_grey():
    axes = activity_heatmap(ACTIVITY.assign(activity_ctrl=0.0, activity_stim=1.0))
    np.testing.assert_allclose(axes.images[0].get_array(), [[2, -1]])
    assert {"+2.0\n±0.5", "-1.0\n±0.2"} <= texts(axes)
    assert "+0.5\n±1.0" not in texts(axes), "B is certain nowhere"
    axes = activity_heatmap(pd.concat([ACTIVITY, ACTIVITY.tail(1).assign(regulator="B")]))
    inks = {text.get_text(): text.get_color() for text in axes.texts}
    assert inks["+0.5\n±1.0"] == "#999999" != inks["-1.0\n±0.2"]


def test_genes_that_speak_for_a_type_come_first():
    table = pd.DataFrame({"gene": [*"xyz"], "effect": [1.0, 0.2, -0.5], "cell_type": "B"})
    axes = cell_type_genes(table, "B", top=1)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["x", "z"]
    assert [bar.get_width() for bar in axes.patches] == [1.0, -0.5]


def test_a_volcano_colours_what_the_members_agree_on():
    table = pd.DataFrame({"gene": ["A", "up", "down", "unsure"], "effect": [-3.0, 0.5, -0.4, 0.6]})
    table = table.assign(change=0.0, sd=[0.0, 0.1, 0.05, 0.5], before=1.0)
    axes = perturbation_volcano(table.assign(perturbed=table["gene"] == "A"))
    dots = axes.collections[0]
    np.testing.assert_allclose(dots.get_offsets(), [[0.5, 5], [-0.4, 8], [0.6, 1.2]])
    assert [to_hex(colour) for colour in dots.get_facecolors()[:2]] == [UP, DOWN]
    assert {"up", "down", "1 rise", "1 fall"} <= texts(axes) and "unsure" not in texts(axes)


def test_training_curves_start_from_step_one_and_skip_gaps():
    metrics = pd.DataFrame(
        {
            "step": [9, 9, 19, 20],
            "train/loss": [2.0, None, None, None],
            "validation/loss": [None, 1.5, 1.0, None],
            "test/loss": [None, None, None, 1.1],
        }
    )
    validation, train = training_curves(metrics).axes
    assert validation.lines[0].get_xydata().tolist() == [[10, 1.5], [20, 1.0]]
    assert train.lines[0].get_xydata().tolist() == [[10, 2.0]]


def test_precision_is_drawn_as_steps_with_its_area_and_the_density():
    network, ridge, guessing = precision_recall_curves(CURVES, 0.25).lines
    assert network.get_xydata().tolist() == [[0, 1], [0.5, 1], [1, 0.4]]
    assert network.get_drawstyle() == "steps-pre" and network.get_label() == "network, 0.700"
    assert ridge.get_label() == r"\$ridge\$, 0.250"
    assert network.get_zorder() > ridge.get_zorder() > guessing.get_zorder()
    assert set(guessing.get_ydata()) == {0.25}


# Files, and what cannot be drawn


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_the_ending_is_the_format_and_the_same_figure_gives_the_same_file(ending, start, tmp_path):
    one, two = (tmp_path / f"{name}.{ending}" for name in ("one", "two"))
    for path in (one, two):
        save(precision_recall_curves(CURVES, 0.25), path)
    assert one.read_bytes().startswith(start) and one.read_bytes() == two.read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_no_picture_touches_pyplot(edges):
    network_graph(edges)
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


EMPTY = {
    "no labelled test cells": lambda edges: confusion_matrix(pd.DataFrame()),
    "The network has no edges": lambda edges: network_graph(edges.iloc[:0]),
    "no edges between these genes": lambda edges: clustered_heatmap(edges.iloc[:0]),
    "No edge is certain (q at most 0.05)": lambda edges: network_graph(edges.assign(q_value=0.06)),
    "No difference in activity": lambda edges: activity_heatmap(ACTIVITY.assign(q_value=0.06)),
    "No metrics were recorded": lambda edges: training_curves(pd.DataFrame({"step": []})),
    "no network to draw": lambda edges: precision_recall_curves({}, 0.1),
}


@pytest.mark.parametrize("said", EMPTY)
def test_a_picture_of_nothing_says_so(said, edges):
    assert any(said in text for text in texts(EMPTY[said](edges)))


WRONG = {
    "a run's folder in place of the run": lambda edges: network_graph("runs/1"),
    "a gene that is not there": lambda edges: network_graph(edges, "a/B"),
    "regulators that are not there": lambda edges: clustered_heatmap(edges, regulators=["a"]),
    "a column that is missing": lambda edges: activity_heatmap(edges),
    "a number that is missing": lambda edges: network_graph(edges.assign(weight=np.nan)),
    "an edge twice": lambda edges: network_graph(pd.concat([edges, edges.head(1)])),
    "edges in place of a perturbation": lambda edges: grn.plots.perturbation_volcano(edges),
    "show=True outside of a notebook": lambda edges: network_graph(edges, show=True),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_likely_mistakes_are_one_sentence(edges, mistake):
    with pytest.raises(UserError) as caught:
        WRONG[mistake](edges)
    assert "\n" not in str(caught.value)
