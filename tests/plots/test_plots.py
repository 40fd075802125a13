"""Every picture is drawn from awkward labels, from none, and shows what it was given."""

from __future__ import annotations

import io
import re
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.image import imread
from matplotlib.text import Text

import grn
from grn.errors import UserError
from grn.plots.cell_types import cell_type_regulators
from grn.plots.edge_scatter import network_difference
from grn.plots.edges import strongest_regulations
from grn.plots.heatmap import network_heatmaps
from grn.plots.edge_scatter import within_and_between
from grn.plots.scores import confusion_matrix
from grn.plots.scores import precision_recall_curves
from grn.plots.training import training_curves
from grn.plots.style import DOWN, LONGEST, UP, figure, save, short, whole

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


def test_labels_are_cut_in_the_middle_and_are_no_formulas():
    assert short("x" * LONGEST) == "x" * LONGEST
    assert short("abcdefghij", 5) == "ab…ij"
    assert short("abcdefghij", 6) == "ab…hij"
    assert short("$x$") == r"\$x\$"


@pytest.mark.parametrize("empty", [pd.DataFrame(), pd.DataFrame([[0]], index=["T"], columns=["T"])])
def test_without_labelled_cells_the_confusion_matrix_says_so(empty):
    assert "There are no labelled test cells." in texts(confusion_matrix(empty))


def test_bars_have_the_weights_and_the_colours_of_their_signs(edges):
    picture = strongest_regulations(edges, count=2)
    bars = picture.patches
    assert [bar.get_width() for bar in bars] == [0.9, 0.4, -0.1, -0.5]
    assert to_hex(bars[0].get_facecolor()) == UP  # confidence 1: the full colour
    red, green, blue, _ = bars[3].get_facecolor()
    assert red > max(green, blue) and to_hex(bars[3].get_facecolor()) != DOWN  # confidence 0.5: a pale red
    labels = [label.get_text() for label in picture.get_yticklabels()]
    assert labels == ["A/B → x", r"\$C\$ → z", "C → x", "A/B → y"]


def test_edges_without_a_confidence_have_the_full_colour(edges):
    bars = strongest_regulations(edges.drop(columns="confidence"), count=2).patches
    assert [to_hex(bar.get_facecolor()) for bar in bars] == [UP, UP, DOWN, DOWN]


def test_a_read_out_without_signs_claims_none(edges):
    signed, unsigned = (texts(strongest_regulations(edges, signed=choice)) for choice in (True, False))
    assert any("raises" in text for text in signed)
    assert not any("raises" in text or "lowers" in text for text in unsigned)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(1, 2)])
def test_edges_of_one_sign_are_drawn(edges, rows):
    picture = strongest_regulations(edges.iloc[rows])
    assert len(picture.patches) == 1
    assert pixels(picture).std() > 0


def test_a_network_without_edges_says_so(edges):
    assert "The network has no edges." in texts(strongest_regulations(edges.iloc[:0]))
    assert "The network has no edges." in texts(network_heatmaps({}))


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


def test_heat_maps_of_zeros_have_a_scale():
    picture = network_heatmaps({"all cells": pd.DataFrame([[0.0]], index=["A"], columns=["x"])})
    assert picture.axes[0].images[0].get_clim() == (-1, 1)


def test_training_curves_start_from_step_one_and_skip_gaps():
    metrics = pd.DataFrame(
        {
            "step": [9, 9, 19, 20],
            "train/loss": [2.0, None, None, None],
            "validation/loss": [None, 1.5, 1.0, None],
            "validation/accuracy": [None, 0.5, 0.75, None],
            "test/loss": [None, None, None, 1.1],
        }
    )
    loss, scores = training_curves(metrics).axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in loss.lines}
    assert drawn == {"train": [[10, 2.0]], "validation": [[10, 1.5], [20, 1.0]]}
    assert scores.lines[0].get_xydata().tolist() == [[10, 0.5], [20, 0.75]]


def test_training_curves_without_labels_have_no_cell_types():
    metrics = pd.DataFrame({"step": [0], "validation/loss": [1.0], "validation/masked_multiplicity_loss": [1.0]})
    picture = training_curves(metrics)
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["Loss of masked multiplicities"]


def test_training_curves_of_nothing_say_so():
    assert "No metrics were recorded during training." in texts(training_curves(pd.DataFrame({"step": []})))


def test_the_same_table_gives_the_same_pixels(confusion, edges):
    for draw, table in ((confusion_matrix, confusion), (strongest_regulations, edges)):
        np.testing.assert_array_equal(pixels(draw(table)), pixels(draw(table)))


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


def test_precision_of_no_network_says_so():
    assert "There is no network to draw." in texts(precision_recall_curves({}, 0.1))


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
    return edges.assign(within=[0.5, 0.0, 0.2, -0.1], between=[0.9, -0.8, 0.1, 0.4])


def test_edges_lie_where_within_and_between_put_them_and_confidence_colours_them(told_apart):
    axes = within_and_between(told_apart)
    dots = axes.collections[0]
    expected = told_apart.sort_values("confidence", kind="stable")  # the most confident is drawn last, on top
    np.testing.assert_allclose(dots.get_offsets(), expected[["between", "within"]])
    np.testing.assert_allclose(dots.get_array(), expected["confidence"])
    assert len(within_and_between(told_apart, count=2).collections[0].get_offsets()) == 2
    named = texts(axes)
    assert "A/B → x" in named, "the strongest within has its name"
    assert "A/B → y" in named, "and so has the strongest that has nothing there"


@pytest.mark.parametrize("change", [{"between": 0.0}, {"within": np.nan}])
def test_edges_that_are_not_told_apart_say_so(told_apart, change):
    picture = within_and_between(told_apart.assign(**change))
    assert "The cells have one state, so nothing is between states." in texts(picture)


@pytest.mark.parametrize(
    ("draw", "wanted"),
    [
        (strongest_regulations, "run.network"),
        (within_and_between, "run.network"),
        (confusion_matrix, "run.confusion"),
        (training_curves, "run.history"),
        (network_heatmaps, "run.network"),
        (lambda value: precision_recall_curves(value, 0.1), "a curve for each method"),
    ],
)
def test_anything_else_than_what_is_drawn_is_one_sentence(draw, wanted):
    with pytest.raises(UserError, match=wanted) as caught:
        draw(object())
    assert "\n" not in str(caught.value) and "object" in str(caught.value)


def test_a_table_without_its_columns_is_one_sentence(edges):
    with pytest.raises(UserError, match=r"has no column 'within'"):
        within_and_between(edges)


REFUSED = {
    "count is 0; it must be a whole number": lambda edges: strongest_regulations(edges, 0),
    "types is 'a'; it must be a whole number": lambda edges: cell_type_regulators(edges, types="a"),
    "The table, row 2: weight is 'a'": lambda edges: strongest_regulations(edges.assign(weight=[1.0, "a", "b", 1.0])),
    "The table, row 1: weight is 'nan'": lambda edges: strongest_regulations(edges.assign(weight=np.nan)),
    "The column 'A' of the table holds": lambda edges: confusion_matrix(pd.DataFrame({"A": ["x"]})),
    "the table has 2 rows and 3 columns": lambda edges: confusion_matrix(pd.DataFrame(np.ones((2, 3)))),
    "the table has no column 'recall'": lambda edges: precision_recall_curves({"ours": edges}, 0.1),
    "density is 'a'; it must be a number from 0 to 1": lambda edges: precision_recall_curves({}, "a"),
    "This picture draws tables of weights": lambda edges: network_heatmaps({"all": 5}),
    "ax is 5; it must be axes of matplotlib": lambda edges: strongest_regulations(edges, ax=5),
    "first is None; it must be a text": lambda edges: network_difference(edges, None, "T"),
    "The column 'step' of the table holds 'a', and": lambda edges: training_curves(pd.DataFrame({"step": ["a"]})),
    "first and second are both 'T'": lambda edges: network_difference(edges, "T", "T"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_drawn_is_one_sentence(edges, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        REFUSED[sentence](edges)
    assert "\n" not in str(caught.value)


COUNTS = pd.DataFrame([[3, 1], [0, 2]], list("ab"), list("ab"))
EXPLAINED = pd.DataFrame({"cell_type": ["B", "B"], "gene": ["x", "y"], "effect": [1.0, -0.5]})
PERTURBED = pd.DataFrame({"gene": ["x", "y"], "effect": [1.0, -0.5], "sd": [0.1, 0.1], "perturbed": [False, True]})
SUBTLE = {
    "b is '-1', which is not a finite number of at least 0": lambda edges: grn.plots.confusion_matrix(
        COUNTS.replace(1, -1)
    ),
    "has 1.5, which is no number of cells": lambda edges: grn.plots.confusion_matrix(COUNTS / 2),
    "has a row 'b' and no such column": lambda edges: grn.plots.confusion_matrix(COUNTS.rename(columns={"b": "c"})),
    "has the type 'a' twice": lambda edges: grn.plots.confusion_matrix(COUNTS.set_axis(list("aa"), axis=0)),
    "has A/B → x more than once, in rows 1 and 5": lambda edges: grn.plots.network_graph(
        pd.concat([edges, edges.head(1)])
    ),
    "more than once, in rows 1 and 2": lambda edges: grn.plots.network_graph(
        edges.iloc[[0, 0]].assign(cell_type=["all", None])
    ),
    "has no source in row 1": lambda edges: strongest_regulations(edges.assign(source=[None, "A", "B", "C"])),
    "confidence is '95.0', which is not": lambda edges: strongest_regulations(edges.assign(confidence=95.0)),
    "between is '2.0', which is not": lambda edges: within_and_between(edges.assign(within=0.1, between=2.0)),
    "weight is '1e+300', which is not": lambda edges: grn.plots.clustered_heatmap(edges.assign(weight=1e300)),
    "has a recall that falls in row 2": lambda edges: precision_recall_curves(
        {"a": pd.DataFrame({"recall": [1, 0.5], "precision": [0.1, 0.9]})}, 0.1
    ),
    "train/loss is 'inf'": lambda edges: training_curves(pd.DataFrame({"step": [1], "train/loss": [np.inf]})),
    "holds other values than true and false": lambda edges: grn.plots.perturbation_volcano(
        PERTURBED.assign(perturbed="no")
    ),
    "has B → x more than once": lambda edges: grn.plots.cell_type_genes(pd.concat([EXPLAINED, EXPLAINED])),
    "ax has a log scale in x": lambda edges: strongest_regulations(edges, ax=logarithmic()),
    "curves has 3.5, which is no name": lambda edges: precision_recall_curves({3.5: edges}, 0.1),
}


def logarithmic():
    ax = figure(3, 3).subplots()
    ax.set_xscale("log")
    return ax


@pytest.mark.parametrize("sentence", SUBTLE)
def test_a_table_that_would_be_drawn_wrongly_is_refused(edges, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        SUBTLE[sentence](edges)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["category", "string", object])
def test_names_are_taken_in_every_form(edges, kind):
    awkward = edges.astype({"source": kind, "target": kind}).set_axis([5, 5, 5, 5])
    for draw in (strongest_regulations, grn.plots.network_graph, grn.plots.clustered_heatmap, cell_type_regulators):
        assert texts(draw(awkward)) == texts(draw(edges))
