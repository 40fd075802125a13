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


def weights_of(reader: Transformer, cells: Cells, row: int) -> np.ndarray:
    """The mean weights of a cell's genes [3, N, N], NaN of those that it lacks. In the last layer
    the identity token asks alone, in the first row.
    """
    x = torch.as_tensor(cells.multiplicity[[row]].toarray())
    tokens, asked = Tokens.of(reader.strength(x, reader.standardised(x))), []
    reader.read(tokens, lambda _, q, k: asked.append((q, k)))
    found, here = np.full((3, x.shape[1], x.shape[1]), np.nan), tokens.gene[:-2].numpy()
    for layer, (q, k) in enumerate(asked):
        s = torch.einsum("pthe,pke->phtk", q.unflatten(-1, (2, 4)), k) * tokens.multiplicity
        weight = (s / s.square().sum(-1, keepdim=True).sqrt()).mean((0, 1)).numpy()
        asking = here if layer < 2 else [0]
        found[layer][np.ix_(asking, here)] = weight[: len(asking), :-2]
    return found


def test_weights_are_means_over_the_cells_that_have_both_genes(reader, cells):
    rows = np.arange(70)  # more than are read at a time
    found = read_attention(reader, cells, rows)
    every = np.stack([weights_of(reader, cells, row) for row in rows])
    seen = np.isfinite(every).sum(0)
    expected = np.nansum(every, 0) / np.maximum(seen, 1)
    np.testing.assert_array_equal(found.cells, seen[0])
    for layer in (0, 1):
        np.fill_diagonal(expected[layer], 0)
        np.testing.assert_allclose(found.layers[layer], expected[layer], atol=1e-5)
    np.testing.assert_allclose(found.identity, expected[2, 0], atol=1e-5)
    assert (found.sd >= 0).all() and found.sd.max() > 0.01


def test_tables_hold_the_strongest_pairs_that_enough_cells_have(reader, cells):
    found = read_attention(reader, cells, np.arange(60))
    edges = edges_of_attention(found, cells.vocabulary, 3, 10)
    assert edges.groupby("target").size().max() <= 3 and (edges["cells"] >= 10).all()
    assert edges["weight"].abs().is_monotonic_decreasing
    matrices, genes = layer_matrices(found, None, 10), cells.vocabulary
    assert list(matrices) == ["grn", "grn_layer0", "grn_layer1"]
    for edge in edges.itertuples():
        place = genes.index(edge.target), genes.index(edge.source)
        assert matrices["grn"][place] == pytest.approx(edge.weight)
