"""The blocks' attention: normalised weights, layer by layer."""

import numpy as np
import pytest
import torch

from flashsign import edge_weights
from flashsign.edges import edge_sums
from flashsign.reference import normalised_weights
from grn.bags import Bags
from grn.model.transformer import EPS
from grn.networks.readouts import block_attention
from grn.networks.readouts.block_attention import attention_layers, layer_sums, strongest_attention
from grn.networks.weights import strongest

REGULATORS = np.array([0, 3, 5])


def parts(bags: Bags, *sizes: int) -> list[Bags]:
    """The same cells in batches."""
    pieces = zip(bags.multiplicity.split(sizes), bags.basal.split(sizes), strict=True)
    return [Bags(bags.genes, multiplicity, basal=basal) for multiplicity, basal in pieces]


@pytest.mark.parametrize("regulators", [REGULATORS, None])
def test_weights_are_those_of_the_loop_over_cells(make_model, make_bags, regulators):
    """The obvious way: cell by cell, every weight at once."""
    model, bags = make_model(regulators=regulators), make_bags()
    columns = np.arange(12) if regulators is None else regulators
    sums = [torch.zeros(12, len(columns)) for _ in model.blocks]

    def observe(layer, q, k, v, m):
        for cell in range(len(q)):
            one = slice(cell, cell + 1)
            weights = edge_weights(q[one, :, :12], k[one], m[one], EPS)
            sums[layer] += weights[0, :, :, : len(columns)].abs().mean(0)

    with torch.no_grad():
        model(bags, observe=observe)
    for found, total in zip(attention_layers(model, [bags], columns), sums, strict=True):
        expected = (total / 5).numpy()
        expected[columns, np.arange(len(columns))] = 0
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("attention", ["softmax", "l1", "squared_relu"])
@pytest.mark.parametrize("packed", [False, True])
def test_other_normalisers_have_their_own_weights(make_model, make_bags, attention, packed):
    model, bags, seen = make_model(attention=attention), make_bags(), []
    with torch.no_grad():
        model(bags, observe=lambda layer, q, k, v, m: seen.append(normalised_weights(q, k, m, attention)))
    found = attention_layers(model, [bags.pack() if packed else bags], REGULATORS)
    for weights, written_out in zip(found, seen, strict=True):
        expected = written_out[..., :12, :3].abs().mean((0, 1)).numpy()
        expected[REGULATORS, np.arange(3)] = 0
        np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("weights", [2**27, 4 * 4 * 5, 1])
def test_batches_and_ranges_of_targets_do_not_matter(make_model, make_bags, monkeypatch, weights):
    """Uneven batches: a mean over batches would not be the mean over cells."""
    model, bags = make_model(), make_bags()
    whole = attention_layers(model, [bags], REGULATORS)
    monkeypatch.setattr(edge_sums, "WEIGHTS", weights)
    for found, expected in zip(attention_layers(model, parts(bags, 4, 1), REGULATORS), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("number", range(14))
def test_no_flip_of_any_head_changes_them(make_model, make_bags, single_flips, number):
    """Each of the 2 x (2 key heads + 4 query heads + 1) flips leaves the predictions and |w| alone, and most turn w."""
    model, bags = make_model(), [make_bags(cells=4), make_bags(cells=3, seed=8)]
    assert len(single_flips(model)) == 14
    before, predicted = attention_layers(model, bags, REGULATORS), model(bags[0]).multiplicity.detach()
    signed = [sums.signed.clone() for sums in layer_sums(model, bags, REGULATORS, range(12))]
    with torch.no_grad():
        for tensor in single_flips(model)[number]:
            tensor.neg_()
    torch.testing.assert_close(model(bags[0]).multiplicity.detach(), predicted)
    for found, expected in zip(attention_layers(model, bags, REGULATORS), before, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)
    now = [sums.signed for sums in layer_sums(model, bags, REGULATORS, range(12))]
    changed = any((one - other).abs().max() > 0.01 for one, other in zip(now, signed, strict=True))
    assert changed == (number not in (12, 13)), "the mean of w over heads depends on the signs that training left"


def present(bags: Bags) -> Bags:
    """Packed, each cell with the genes that it has."""
    there = bags.multiplicity > 0
    cells, genes = there.nonzero(as_tuple=True)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), there.sum(1).cumsum(0)])
    return Bags(genes, bags.multiplicity[cells, genes], offsets, bags.basal)


def test_packed_bags_average_over_the_cells_that_list_the_target(make_model, make_bags):
    """A cell's weights do not depend on which absent genes its bag lists."""
    model, bags = make_model(), make_bags()
    one_by_one = [attention_layers(model, [part], REGULATORS) for part in parts(bags, 1, 1, 1, 1, 1)]
    there = (bags.multiplicity > 0).numpy()
    assert not there.all()
    for layer, found in enumerate(attention_layers(model, [present(bags)], REGULATORS)):
        weights = np.stack([cell[layer] for cell in one_by_one])
        expected = (weights * there[..., None]).sum(0) / np.maximum(there.sum(0), 1)[:, None]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("table", [1, 3 * 3 * 5, 2**20])
@pytest.mark.parametrize("top_k", [1, 2])
def test_the_strongest_are_those_of_the_whole_tables(make_model, make_bags, monkeypatch, table, top_k):
    model, bags = make_model(), make_bags()
    monkeypatch.setattr(block_attention, "TABLE", table)
    layers = attention_layers(model, [bags], REGULATORS)
    found = strongest_attention(model, lambda: parts(bags, 3, 2), REGULATORS, top_k)
    for few, whole in zip(found, [*layers, np.mean(layers, axis=0)], strict=True):
        assert few.nnz == 12 * top_k
        np.testing.assert_allclose(few.toarray(), np.where(strongest(whole, top_k), whole, 0), rtol=1e-5, atol=1e-7)
