"""Every picture is drawn from awkward labels, from none, and shows what it was given."""

from __future__ import annotations

import io
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.image import imread
from matplotlib.text import Text

import grn
from grn.errors import UserError
from grn.plots.bars import strongest_regulations
from grn.plots.heatmaps import network_heatmaps
from grn.plots.regulators import cell_type_regulators
from grn.plots.scatter import within_and_between
from grn.plots.scores import confusion_matrix, precision_recall_curves, training_curves
from grn.plots.style import DOWN, UP, save, whole

LABELS = ["CD4+/CD25 T Reg", "a type with a very long name that goes on and on", "$x_1$ & <b>"]


def texts(picture) -> set[str]:
    picture = whole(picture)
    return {text.get_text() for text in picture.findobj(Text)}


def pixels(picture) -> np.ndarray:
    buffer = io.BytesIO()
    whole(picture).savefig(buffer, format="png")
    return imread(io.BytesIO(buffer.getvalue()))


@pytest.fixture
def confusion():
    return pd.DataFrame([[8, 2, 0], [0, 5, 0], [0, 0, 0]], index=LABELS, columns=LABELS)


@pytest.fixture
def edges():
    return pd.DataFrame(
        [("A/B", "x", 0.9, 1.0), ("A/B", "y", -0.5, 0.5), ("$C$", "z", 0.4, 0.8), ("C", "x", -0.1, 0.9)],
        columns=["source", "target", "weight", "confidence"],
    )


def test_the_confusion_matrix_writes_counts_and_colours_shares(confusion):
    picture = axes = confusion_matrix(confusion)
    numbers = {(round(text.get_position()[1]), round(text.get_position()[0])): text.get_text() for text in axes.texts}
    assert numbers == {(0, 0): "8", (0, 1): "2", (1, 1): "5"}
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.8, 0.2, 0], [0, 1, 0], [0, 0, 0]])
    assert "CD4+/CD25 T Reg" in texts(picture)


def test_bars_have_the_weights_and_the_colours_of_their_signs(edges):
    picture = strongest_regulations(edges, count=2)
    bars = picture.patches
    assert [bar.get_width() for bar in bars] == [0.9, 0.4, -0.1, -0.5]
    assert to_hex(bars[0].get_facecolor()) == UP  # confidence 1: the full colour
    red, green, blue, _ = bars[3].get_facecolor()
    assert red > max(green, blue) and to_hex(bars[3].get_facecolor()) != DOWN  # confidence 0.5: a pale red
    labels = [label.get_text() for label in picture.get_yticklabels()]
    assert labels == ["A/B → x", r"\$C\$ → z", "C → x", "A/B → y"]
    bars = strongest_regulations(edges.drop(columns="confidence"), count=2).patches
    assert [to_hex(bar.get_facecolor()) for bar in bars] == [UP, UP, DOWN, DOWN], "no confidence: the full colour"


def test_a_read_out_without_signs_claims_none(edges):
    signed, unsigned = (texts(strongest_regulations(edges, signed=choice)) for choice in (True, False))
    assert any("raises" in text for text in signed)
    assert not any("raises" in text or "lowers" in text for text in unsigned)


@pytest.mark.parametrize("types", [0, 1, 5])
def test_heat_maps_share_one_scale_and_label_every_column(types):
    frame = pd.DataFrame([[1.0, -2.0], [0.0, 0.5]], index=["A/B", "C"], columns=["x", "y"])
    weights = {"all cells": frame} | {f"T/{number}": frame * number for number in range(types)}
    picture = network_heatmaps(weights)
    images = [axes.images[0] for axes in picture.axes if axes.images]
    assert len(images) == types + 1
    assert len({image.get_clim() for image in images}) == 1
    low, high = images[0].get_clim()
    assert low == -high
    np.testing.assert_array_equal(images[0].get_array(), frame)
    assert picture.axes[types].get_title(loc="left") == list(weights)[-1]
    assert pixels(picture).std() > 0


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


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_ending_is_the_format_and_the_same_figure_gives_the_same_file(ending, start, curves, tmp_path):
    for name in ("one", "two"):
        save(precision_recall_curves(curves, 0.25), tmp_path / f"{name}.{ending}")
    one, two = (tmp_path / f"{name}.{ending}" for name in ("one", "two"))
    assert one.read_bytes().startswith(start) and one.read_bytes() == two.read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_no_picture_touches_pyplot(confusion, edges):
    confusion_matrix(confusion), strongest_regulations(edges)
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


@pytest.fixture
def told_apart(edges):
    return edges.assign(between=[0.9, -0.8, 0.1, 0.4])


def test_edges_lie_where_weight_and_between_put_them_and_confidence_colours_them(told_apart):
    axes = within_and_between(told_apart)
    dots = axes.collections[0]
    expected = told_apart.sort_values("confidence", kind="stable")  # the most confident is drawn last, on top
    np.testing.assert_allclose(dots.get_offsets(), expected[["between", "weight"]])
    np.testing.assert_allclose(dots.get_array(), expected["confidence"])
    assert len(within_and_between(told_apart, count=2).collections[0].get_offsets()) == 2
    named = texts(axes)
    assert "A/B → x" in named, "the strongest has its name"
    assert "A/B → y" in named, "and so has one whose levels go together"


EMPTY = {
    "no labelled test cells": lambda edges: confusion_matrix(pd.DataFrame()),
    "no labelled test": lambda edges: confusion_matrix(pd.DataFrame([[0]], index=["T"], columns=["T"])),
    "has no edges": lambda edges: strongest_regulations(edges.iloc[:0]),
    "network has no edges": lambda edges: network_heatmaps({}),
    "The network has no edges.": lambda edges: cell_type_regulators(edges.iloc[:0]),
    "No metrics were recorded": lambda edges: training_curves(pd.DataFrame({"step": []})),
    "no network to draw": lambda edges: precision_recall_curves({}, 0.1),
    "cells have one state": lambda edges: within_and_between(edges.assign(between=0.0)),
    "one state": lambda edges: within_and_between(edges.assign(between=np.nan)),
}


@pytest.mark.parametrize("said", EMPTY)
def test_a_picture_of_nothing_says_so(said, edges):
    assert any(said in text for text in texts(EMPTY[said](edges)))


WRONG = {
    "an object in place of edges": lambda edges: strongest_regulations(object()),
    "a run's folder in place of the run": lambda edges: grn.plots.regulator_dots("runs/1"),
    "a column that is missing": lambda edges: within_and_between(edges),
    "a number that is missing": lambda edges: strongest_regulations(edges.assign(weight=[1.0, np.nan, 1.0, 1.0])),
    "an edge twice": lambda edges: grn.plots.network_graph(pd.concat([edges, edges.head(1)])),
    "edges in place of a curve": lambda edges: precision_recall_curves({"ours": edges}, 0.1),
    "edges in place of a perturbation": lambda edges: grn.plots.perturbation_volcano(edges),
    "show=True outside of a notebook": lambda edges: strongest_regulations(edges, show=True),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_likely_mistakes_are_one_sentence(edges, mistake):
    with pytest.raises(UserError) as caught:
        WRONG[mistake](edges)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["category", "string", object])
def test_names_are_taken_in_every_form(edges, kind):
    awkward = edges.astype({"source": kind, "target": kind}).set_axis([5, 5, 5, 5])
    for draw in (strongest_regulations, grn.plots.network_graph, grn.plots.clustered_heatmap, cell_type_regulators):
        assert texts(draw(awkward)) == texts(draw(edges))
