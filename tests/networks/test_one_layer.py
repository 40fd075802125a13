"""One block of the model: scores, effects and weights of its heads, in a model and in a run."""

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

from grn import read_network
from grn.edges.weights import balanced
from grn.networks.one_layer import LayerChoice, read_layer
from grn.networks.read import read_network as read_whole

REGULATORS = np.array([0, 3, 5])
HEADS = 4, 2  # of blocks that have several
IS_REGULATOR = np.isin(np.arange(12), REGULATORS)


def read(model, cells, *choice, chosen=None):
    of, known = cells
    return read_layer(
        model, LayerChoice(*choice), of, known, range(len(known)) if chosen is None else chosen
    )


def test_the_effects_of_both_blocks_are_the_direct_effects_of_the_network(make_model, make_cells):
    """The sum of their heads, each row in units of the regulators' usual sds and balanced."""
    model, cells = make_model(heads=HEADS), make_cells()
    blocks = [read(model, cells, layer) for layer in (0, 1)]
    for layer, block in enumerate(blocks):
        heads = [read(model, cells, layer, head) for head in range(4)]
        np.testing.assert_allclose(block, sum(heads), rtol=1e-5, atol=1e-7)
        assert (block[(layer == 1) == IS_REGULATOR] == 0).all()
    of, known = cells
    values = torch.as_tensor(of.multiplicity.toarray()[:, REGULATORS]).double()
    usual = model.inputs(values, torch.as_tensor(of.basal)).std(0, correction=0)[:-1]
    expected = balanced(torch.as_tensor(sum(blocks)) * usual)
    np.testing.assert_allclose(
        read_whole(model, of, known, 0).weight, expected, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("layer", [0, 1])
def test_scores_and_weights_have_the_same_signs_and_heads_together_are_their_mean(
    make_model, make_cells, layer
):
    """Of one member, whose score is the same in every cell; weights lie between -1 and 1."""
    model, cells = make_model(members=1, heads=HEADS), make_cells()
    for value in ("score", "weight"):
        heads = [read(model, cells, layer, head, value) for head in range(4)]
        np.testing.assert_allclose(
            read(model, cells, layer, None, value), np.mean(heads, 0), rtol=1e-5, atol=1e-7
        )
    for head in range(4):
        score, weight = (read(model, cells, layer, head, value) for value in ("score", "weight"))
        assert np.array_equal(np.sign(score), np.sign(weight)) and 0.01 < np.abs(weight).max() < 1
        assert (score != 0).sum() == (6 if layer == 0 else 27)


def test_several_states_count_by_their_cells(make_model, make_cells):
    model, cells = make_model(states=3, heads=HEADS), make_cells(states=3)
    size = cells[1].membership.sum(0)
    for value in ("score", "weight", "effect"):
        each = [read(model, cells, 1, 2, value, chosen=[state]) for state in range(3)]
        expected = sum(part * one for part, one in zip(size / size.sum(), each, strict=True))
        np.testing.assert_allclose(read(model, cells, 1, 2, value), expected, rtol=1e-4, atol=1e-7)
        assert not np.allclose(each[0], each[1])


@pytest.mark.parametrize("layer", [0, 1])
def test_the_score_of_a_run_is_q_k_of_its_saved_tensors(tiny_run, layer):
    """Ten lines of NumPy on model.safetensors: the types' mean, as they have equally many cells."""
    edges = read_network(tiny_run, layer=layer, head=0, value="score")
    saved = load_file(tiny_run / "model" / "model.safetensors")
    query, deviation, key = (
        saved[f"blocks.{layer}.embedding.{name}"][:, 0].astype(np.float32)
        for name in ("query", "deviation", "key")
    )
    per_state = query[:, None] + deviation  # [P, S, n, E]
    score = (per_state @ key[:, None].swapaxes(-1, -2))[..., :-1].mean((0, 1))
    names = (tiny_run / "model" / "vocabulary.txt").read_text().split()
    own = [name for name in names if name.startswith("R") == (layer == 0)]
    table = pd.DataFrame(score, own, names[:4])
    assert names[:4] == ["R1", "R2", "R3", "R4"] and list(edges) == ["source", "target", "weight"]
    assert len(edges) == (12 if layer == 0 else 48)
    expected = [table.loc[edge.target, edge.source] for edge in edges.itertuples()]
    np.testing.assert_allclose(edges["weight"], expected, rtol=1e-3, atol=1e-6)
