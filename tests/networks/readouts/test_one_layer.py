"""One layer of the transformer: what is read of it changes under no flip of signs, or as a whole."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

from flashsign import edge_weights
from grn import load, read_network
from grn.model.transformer import EPS
from grn.networks.readouts.block_attention import attention_layers
from grn.networks.readouts.one_layer import LayerChoice, meaning_of_signs, read_layer

REGULATORS = np.array([0, 3, 5])


def read(model, make_bags, *choice):
    return read_layer(model, LayerChoice(*choice), [make_bags(cells=4), make_bags(cells=3, seed=8)], REGULATORS)


def test_sizes_are_the_same_after_every_flip_and_signed_weights_turn_as_a_whole(make_model, make_bags, flip, request):
    model = make_model()
    choices = [(layer, head) for layer in (0, 1) for head in (None, 0, 1, 2, 3)]
    sizes = [read(model, make_bags, *choice, "absolute") for choice in choices]
    signed = [read(model, make_bags, *choice, "weight") for choice in choices if choice[1] is not None]
    scores = [read(model, make_bags, 0, head, "score") for head in range(4)]
    flip(model)
    for choice, before in zip(choices, sizes, strict=True):
        np.testing.assert_allclose(read(model, make_bags, *choice, "absolute"), before, atol=1e-6)
    turned = 0
    after = [read(model, make_bags, *choice, "weight") for choice in choices if choice[1] is not None]
    after += [read(model, make_bags, 0, head, "score") for head in range(4)]
    for before, now in zip(signed + scores, after, strict=True):
        sign = np.sign((before * now).sum())
        np.testing.assert_allclose(now, sign * before, atol=1e-5)
        turned += sign < 0
    assert bool(turned) == (request.node.callspec.params["flip"] != "value and output")


def test_heads_together_are_the_mean_of_the_heads(make_model, make_bags):
    model = make_model()
    heads = [read(model, make_bags, 1, head, "absolute") for head in range(4)]
    np.testing.assert_allclose(read(model, make_bags, 1, None, "absolute"), np.mean(heads, axis=0), atol=1e-6)
    bags = [make_bags(cells=4), make_bags(cells=3, seed=8)]
    np.testing.assert_allclose(attention_layers(model, bags, REGULATORS)[1], np.mean(heads, axis=0), atol=1e-6)
    signed = [read(model, make_bags, 1, head, "weight") for head in range(4)]
    assert all((np.abs(weight) <= size + 1e-6).all() for weight, size in zip(signed, heads, strict=True))
    assert all((size[REGULATORS, range(3)] == 0).all() for size in heads)


def test_the_score_of_the_first_layer_is_q_k_of_the_saved_tensors(tiny_run, tmp_path):
    """Ten lines of NumPy on model.safetensors."""
    edges = read_network(tiny_run, layer=0, head=1, value="score")
    saved = load_file(tiny_run / "model" / "model.safetensors")
    heads, key_heads = (getattr(load(tiny_run).config.model, name) for name in ("query_heads", "key_heads"))
    tokens = saved["embedding.weight"][:-1].astype(np.float64)
    tokens = tokens / np.sqrt((tokens**2).mean(1, keepdims=True) + np.finfo(np.float32).eps)
    tokens = tokens * saved["blocks.0.norm.weight"]
    q = (tokens @ saved["blocks.0.attention.query.weight"].T).reshape(len(tokens), heads, -1)[:, 1]
    k = (tokens @ saved["blocks.0.attention.key.weight"].T).reshape(len(tokens), key_heads, -1)
    score = q @ k[:, 1 // (heads // key_heads)].T
    genes = (tiny_run / "model" / "vocabulary.txt").read_text().split()
    rows, columns = (pd.Index(genes).get_indexer(edges[end]) for end in ("target", "source"))
    np.testing.assert_allclose(edges["weight"], score[rows, columns], rtol=1e-4, atol=1e-5)
    assert len(edges) == 4 * 15 and list(edges) == ["source", "target", "weight"]


def test_a_type_of_cells_has_a_mean_of_its_own(tiny_run, tmp_path):
    """From a run, its folder, and as a file; the key of varp is the mean over the cells that the run read."""
    tables = {}
    for name in (None, "type 1", "type 2"):
        table = read_network(tiny_run, layer=0, cells="all", cell_type=name)
        assert list(table) == ["source", "target", "weight"] and table["weight"].is_monotonic_decreasing
        tables[name] = table.set_index(["source", "target"])["weight"].sort_index()
    assert (tables["type 1"] > 0).all() and not np.allclose(tables["type 1"], tables["type 2"])
    # The types have equally many cells.
    np.testing.assert_allclose(tables[None], (tables["type 1"] + tables["type 2"]) / 2, rtol=1e-3)
    as_configured, adata = read_network(load(tiny_run), layer=0), load(tiny_run).network
    rows, columns = (adata.var_names.get_indexer(as_configured[end]) for end in ("target", "source"))
    held = adata.varp["grn_attention_layer0"].toarray()
    np.testing.assert_allclose(held[rows, columns], as_configured["weight"], rtol=1e-4)


@pytest.mark.parametrize("attention", ["softmax", "squared_relu"])
def test_normalisers_without_negative_weights_know_no_turned_signs(make_model, make_bags, attention, flip, request):
    """Turning q (with its message) or k (with its value) makes another model of them: sizes are all that there is."""
    model = make_model(attention=attention)
    before = model(make_bags()).multiplicity
    weight, size = (read(model, make_bags, 1, 0, value) for value in ("weight", "absolute"))
    np.testing.assert_allclose(weight, size, atol=1e-7)
    assert meaning_of_signs(model, "weight") == meaning_of_signs(model, "absolute") == "none: sizes of weights"
    assert meaning_of_signs(make_model(), "weight") != meaning_of_signs(model, "score")
    flip(model)
    same = torch.allclose(model(make_bags()).multiplicity, before)
    assert same == (request.node.callspec.params["flip"] == "value and output")


def test_the_mean_is_that_of_weights_written_out(make_model, make_bags):
    """Against flashsign's definition, with every weight in memory."""
    model, bags, seen = make_model(), make_bags(cells=4), {}
    with torch.no_grad():
        model(bags, observe=lambda layer, q, k, v, m: seen.update({layer: (q, k, m)}))
    q, k, m = seen[1]
    weights = edge_weights(q, k, m, eps=EPS)[:, 2, :12, :3].mean(0).numpy()
    weights[REGULATORS, range(3)] = 0
    found = read_layer(model, LayerChoice(1, 2, "weight"), [bags], REGULATORS)
    np.testing.assert_allclose(found, weights, atol=1e-6)
