"""Every picture is drawn from awkward labels, from none, and shows what it was given."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

import grn
from grn.plots import clustered_heatmap, network_graph
from grn.plots.activity import activity_heatmap
from grn.plots.scores import confusion_matrix, precision_recall_curves, training_curves
from grn.plots.style import save, whole
from grn.runtime.errors import UserError

LABELS = ["CD4+/CD25 T Reg", "a type with a very long name that goes on and on", "$x_1$ & <b>"]


def texts(picture) -> set[str]:
    picture = whole(picture)
    return {text.get_text() for text in picture.findobj(Text)}


@pytest.fixture
def confusion():
    return pd.DataFrame([[8, 2, 0], [0, 5, 0], [0, 0, 0]], index=LABELS, columns=LABELS)


@pytest.fixture
def edges():
    return pd.DataFrame(
        [
            ("A/B", "x", 0.9, 1.0),
            ("A/B", "y", -0.5, 0.5),
            ("$C$", "z", 0.4, 0.8),
            ("C", "x", -0.1, 0.9),
        ],
        columns=["source", "target", "weight", "confidence"],
    )


def test_the_confusion_matrix_writes_counts_and_colours_shares(confusion):
    picture = axes = confusion_matrix(confusion)
    numbers = {
        (round(text.get_position()[1]), round(text.get_position()[0])): text.get_text()
        for text in axes.texts
    }
    assert numbers == {(0, 0): "8", (0, 1): "2", (1, 1): "5"}
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.8, 0.2, 0], [0, 1, 0], [0, 0, 0]])
    assert "CD4+/CD25 T Reg" in texts(picture)


def test_activities_have_their_interval_and_uncertain_ones_are_grey():
    table = pd.DataFrame(
        [
            ("T1", "A", 2.0, 1.5, 2.5, 0.001),
            ("T1", "B", 0.5, -0.5, 1.5, 0.4),
            ("T2", "A", -1.0, -1.25, -0.75, 0.01),
        ],
        columns=["cell_type", "regulator", "effect", "low", "high", "q_value"],
    )
    axes = activity_heatmap(table.assign(activity_ctrl=0.0, activity_stim=1.0))
    np.testing.assert_allclose(axes.images[0].get_array(), [[2, -1]])
    assert {"+2.0\n±0.5", "-1.0\n±0.2"} <= texts(axes) and "+0.5\n±1.0" not in texts(axes), (
        "B is certain nowhere"
    )
    axes = activity_heatmap(pd.concat([table, table.tail(1).assign(regulator="B")]))
    inks = {text.get_text(): text.get_color() for text in axes.texts}
    assert inks["+0.5\n±1.0"] == "#999999" != inks["-1.0\n±0.2"]


@pytest.mark.parametrize("count", [1, 2, 30])
def test_boxes_of_genes_do_not_overlap(count):
    draw = np.random.default_rng(count)
    ends = {
        "source": draw.choice(["SPI1", "A-LONG-REGULATOR", "R3"], count),
        "target": [f"HLA-{n}" for n in range(count)],
    }
    edges = pd.DataFrame(ends | {"weight": draw.normal(size=count), "q_value": 0.01})
    axes = network_graph(edges)
    axes.figure.canvas.draw()
    boxes = [text.get_window_extent().padded(5) for text in axes.texts]
    assert len(boxes) == count + edges["source"].nunique()
    for number, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[number + 1 :])


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


@pytest.fixture
def curves():
    return {
        "network": pd.DataFrame({"recall": [0.5, 1.0], "precision": [1.0, 0.4]}),
        "$ridge$": pd.DataFrame({"recall": [1.0], "precision": [0.25]}),
    }


def test_precision_is_drawn_as_steps_with_its_area_and_the_density(curves):
    axes = precision_recall_curves(curves, 0.25)
    network, ridge, guessing = axes.lines
    assert network.get_xydata().tolist() == [[0, 1], [0.5, 1], [1, 0.4]]
    assert network.get_drawstyle() == "steps-pre"
    assert network.get_label() == "network, 0.700"
    assert ridge.get_label() == r"\$ridge\$, 0.250"
    assert network.get_zorder() > ridge.get_zorder() > guessing.get_zorder()
    assert set(guessing.get_ydata()) == {0.25}


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_the_ending_is_the_format_and_the_same_figure_gives_the_same_file(
    ending, start, curves, tmp_path
):
    for name in ("one", "two"):
        save(precision_recall_curves(curves, 0.25), tmp_path / f"{name}.{ending}")
    one, two = (tmp_path / f"{name}.{ending}" for name in ("one", "two"))
    assert one.read_bytes().startswith(start) and one.read_bytes() == two.read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_no_picture_touches_pyplot(confusion, edges):
    confusion_matrix(confusion), network_graph(edges)
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


ACTIVITY = pd.DataFrame(
    {"cell_type": ["T"], "regulator": "A", "effect": 1.0, "low": 0.5, "high": 1.5}
)
EMPTY = {
    "no labelled test cells": lambda edges: confusion_matrix(pd.DataFrame()),
    "no labelled test": lambda edges: confusion_matrix(
        pd.DataFrame([[0]], index=["T"], columns=["T"])
    ),
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
    "an object in place of edges": lambda edges: network_graph(object()),
    "a run's folder in place of the run": lambda edges: network_graph("runs/1"),
    "a column that is missing": lambda edges: activity_heatmap(edges),
    "a number that is missing": lambda edges: network_graph(
        edges.assign(weight=[1.0, np.nan, 1.0, 1.0])
    ),
    "an edge twice": lambda edges: network_graph(pd.concat([edges, edges.head(1)])),
    "edges in place of a curve": lambda edges: precision_recall_curves({"ours": edges}, 0.1),
    "edges in place of a perturbation": lambda edges: grn.plots.perturbation_volcano(edges),
    "show=True outside of a notebook": lambda edges: network_graph(edges, show=True),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_likely_mistakes_are_one_sentence(edges, mistake):
    with pytest.raises(UserError) as caught:
        WRONG[mistake](edges)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["category", "string", object])
def test_names_are_taken_in_every_form(edges, kind):
    awkward = edges.astype({"source": kind, "target": kind}).set_axis([5, 5, 5, 5])
    for draw in (network_graph, clustered_heatmap):
        assert texts(draw(awkward)) == texts(draw(edges))
