"""The networks of the transformer's layers: mean weights of genes on genes, written out."""

import numpy as np
import pytest
import torch

from grn.bags import Tokens
from grn.cells.cells import Cells
from grn.model.reader import ReaderShape
from grn.model.transformer import Transformer
from grn.networks.attention import edges_of_attention, layer_matrices, read_attention

SHAPE = ReaderShape(members=2, classes=3, summary=8, hidden=8, layers=3, query_heads=2, key_heads=1)


@pytest.fixture
def cells(make_cells) -> Cells:
    return make_cells(70)[0]


@pytest.fixture
def reader(cells) -> Transformer:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        reader = Transformer(len(cells.vocabulary), SHAPE).requires_grad_(False)
    values = torch.as_tensor(cells.multiplicity.toarray())
    reader.mean.copy_(values.mean(0))  # multiplicities of both signs
    reader.sd.copy_(values.std(0))
    return reader


def test_weights_are_means_over_the_cells_that_have_both_genes(reader, cells):
    rows = np.arange(70)  # more than are read at a time
    found = read_attention(reader, cells, rows)
    genes = len(cells.vocabulary)
    total, count = np.zeros((2, genes, genes)), np.zeros((genes, genes))
    identity, seen = np.zeros(genes), np.zeros(genes)
    for row in rows:
        x = torch.as_tensor(cells.multiplicity[[row]].toarray())
        tokens, asked = Tokens.of(reader.strength(x, reader.standardised(x))), []
        reader.read(tokens, lambda _, q, k, asked=asked: asked.append((q, k)))
        here = tokens.gene[:-2].numpy()
        weights = []
        for q, k in asked:
            s = torch.einsum("pthe,pke->phtk", q.unflatten(-1, (2, 4)), k) * tokens.multiplicity
            weights.append((s / s.square().sum(-1, keepdim=True).sqrt()).mean((0, 1)).numpy())
        for number in range(2):
            total[number][np.ix_(here, here)] += weights[number][:-2, :-2]
        count[np.ix_(here, here)] += 1
        identity[here] += weights[2][0, :-2]
        seen[here] += 1
    assert (found.cells == count).all()
    expected = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
    for number in range(2):
        np.fill_diagonal(expected[number], 0)
        np.testing.assert_allclose(found.layers[number], expected[number], atol=1e-5)
    np.testing.assert_allclose(found.identity, identity / np.maximum(seen, 1), atol=1e-5)
    assert (found.sd >= 0).all() and found.sd.max() > 0.01


def test_tables_hold_the_strongest_pairs_that_enough_cells_have(reader, cells):
    found = read_attention(reader, cells, np.arange(60))
    edges = edges_of_attention(found, cells.vocabulary, 3, 10)
    assert edges.groupby("target").size().max() <= 3 and (edges["cells"] >= 10).all()
    assert edges["weight"].abs().is_monotonic_decreasing
    matrices = layer_matrices(found, None, 10)
    assert list(matrices) == ["grn", "grn_layer0", "grn_layer1"]
    places = {gene: number for number, gene in enumerate(cells.vocabulary)}
    for source, target, weight in (
        edges[["source", "target", "weight"]].head(20).itertuples(index=False)
    ):
        assert matrices["grn"][places[target], places[source]] == pytest.approx(weight)
