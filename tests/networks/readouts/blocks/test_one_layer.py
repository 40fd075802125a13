"""One layer of the transformer: what is read of it changes under no flip of signs, or as a whole."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

from grn import load
from grn.cli.main import main
from grn.errors import ConfigError
from grn.model.transformer import EPS
from grn.networks.readouts.blocks.block_attention import attention_layers
from grn.networks.readouts.blocks.one_layer import LayerChoice, meaning_of_signs, read_layer

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
    path = tmp_path / "score.parquet"
    options = ["--layer", "0", "--head", "1", "--value", "score", "--format", "parquet", "--output", str(path)]
    assert main(["export", str(tiny_run), *options]) == 0
    saved = load_file(tiny_run / "model" / "model.safetensors")
    heads, key_heads = (getattr(load(tiny_run).config.model, name) for name in ("query_heads", "key_heads"))
    tokens = saved["embedding.weight"][:-1].astype(np.float64)
    tokens = tokens / np.sqrt((tokens**2).mean(1, keepdims=True) + np.finfo(np.float32).eps)
    tokens = tokens * saved["blocks.0.norm.weight"]
    q = (tokens @ saved["blocks.0.attention.query.weight"].T).reshape(len(tokens), heads, -1)[:, 1]
    k = (tokens @ saved["blocks.0.attention.key.weight"].T).reshape(len(tokens), key_heads, -1)
    score = q @ k[:, 1 // (heads // key_heads)].T
    edges = pd.read_parquet(path)
    genes = (tiny_run / "model" / "vocabulary.txt").read_text().split()
    rows, columns = (pd.Index(genes).get_indexer(edges[end]) for end in ("target", "source"))
    np.testing.assert_allclose(edges["weight"], score[rows, columns], rtol=1e-4, atol=1e-5)
    assert len(edges) == 4 * 15 and list(edges) == ["source", "target", "weight"]


def test_a_type_of_cells_has_a_mean_of_its_own(tiny_run, tmp_path, capsys):
    tables = {}
    for name, options in {"all": [], "one": ["--cell-type", "type 1"], "two": ["--cell-type", "type 2"]}.items():
        path = tmp_path / f"{name}.parquet"
        arguments = ["--layer", "0", "--cells", "all", "--format", "parquet", "--output", str(path), *options]
        assert main(["export", str(tiny_run), *arguments]) == 0
        tables[name] = pd.read_parquet(path).set_index(["source", "target"])["weight"].sort_index()
    said = capsys.readouterr().out
    assert "Reading layer 0 over 80 cells." in said and "(type 1), as" in said and " up and " not in said
    assert (tables["one"] > 0).all() and not np.allclose(tables["one"], tables["two"])
    share = 40 / 80  # the types have equally many cells
    np.testing.assert_allclose(tables["all"], share * tables["one"] + (1 - share) * tables["two"], rtol=1e-3)


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


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ((2, None, "absolute"), "--layer is 2, and this model has the layers 0 to 1"),
        ((0, 4, "absolute"), "--head is 4, and a layer of this model has the heads 0 to 3"),
        ((0, None, "weight"), "--value weight has signs, which mean nothing in a mean over heads; give --head 0 to 3"),
        ((1, 0, "score"), "--value score is of the first layer, --layer 0"),
        ((0, None, "size"), "--value is 'size'; it must be score, weight, absolute, effect"),
    ],
)
def test_what_cannot_be_read_of_a_layer_is_one_sentence(choice, sentence, make_model):
    with pytest.raises(ConfigError, match=sentence):
        LayerChoice(*choice).check(make_model())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--layer", "0"], "--layer writes the attention of one layer as one file; give --format"),
        (["--layer", "0", "--format", "csv", "--by", "cell_type"], "leave out --readout and --by"),
        (["--head", "0", "--format", "csv"], "--head and --value are of one layer of the transformer; give --layer"),
        (
            ["--layer", "0", "--head", "0", "--value", "score", "--format", "csv", "--cell-type", "type 1"],
            "--cell-type",
        ),
        (["--layer", "0", "--format", "csv", "--sign", "up"], "the signs of these weights mean nothing"),
        (["--layer", "0", "--format", "csv", "--cells", "some"], "'some' is neither 'all' nor a number of cells"),
        (["--layer", "0", "--format", "csv", "--cell-type", "T"], "--cell-type is 'T', which has no network"),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence_and_leave_nothing(
    arguments, sentence, tiny_run, tmp_path, capsys
):
    assert main(["export", str(tiny_run), "--output", str(tmp_path / "x.csv"), *arguments]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_weights_without_signs_are_no_gene_sets(tiny_run, tmp_path, capsys):
    assert main(["export", str(tiny_run), "--output", str(tmp_path / "x.gmt"), "--layer", "0", "--format", "gmt"]) == 2
    assert "mean nothing; give another format, as --format csv" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_the_mean_is_that_of_weights_written_out(make_model, make_bags):
    """Against flashsign's definition, with every weight in memory."""
    from flashsign import edge_weights

    model, bags, seen = make_model(), make_bags(cells=4), {}
    with torch.no_grad():
        model(bags, observe=lambda layer, q, k, v, m: seen.update({layer: (q, k, m)}))
    q, k, m = seen[1]
    weights = edge_weights(q, k, m, eps=EPS)[:, 2, :12, :3].mean(0).numpy()
    weights[REGULATORS, range(3)] = 0
    found = read_layer(model, LayerChoice(1, 2, "weight"), [bags], REGULATORS)
    np.testing.assert_allclose(found, weights, atol=1e-6)
