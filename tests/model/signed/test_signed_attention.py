"""The regulation layer by attention: the numbers and gradients of its tables."""

import pytest
import torch

from grn.bags import Bags
from grn.model.signed import regulation as module
from grn.model.signed.regulation import Regulation
from grn.model.signed.signed_attention import attend, faster_than_tables

SIZES = torch.tensor([5, 0, 12, 7, 1])


def some_bags(seed: int = 0) -> tuple[Bags, torch.Tensor]:
    """Packed bags of 12 genes, one of them empty, and multiplicities of three regulators, some absent."""
    generator = torch.Generator().manual_seed(seed)
    genes = torch.cat([torch.randperm(12, generator=generator)[:size].sort()[0] for size in SIZES])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), SIZES.cumsum(0)])
    values = 3 * torch.rand(len(SIZES), 3, generator=generator, dtype=torch.float64)
    values[values < 0.6] = 0
    basal = 0.5 + torch.rand(len(SIZES), generator=generator, dtype=torch.float64)
    return Bags(genes, torch.ones(len(genes), dtype=torch.float64), offsets, basal), values


@pytest.mark.parametrize("states", [1, 3])
def test_attention_and_tables_give_the_same_numbers_and_gradients(make_regulation, states):
    layer, (bags, values) = make_regulation(members=3, states=states).requires_grad_(True), some_bags()
    layer.predicts_ranks.copy_(torch.tensor([0, 1, 0]))
    layer.reads_depth.copy_(torch.tensor([0, 0, 1]))
    state = torch.arange(len(SIZES)) % states
    cell = torch.arange(len(SIZES)).repeat_interleave(SIZES)
    expected = layer(values, bags.basal, torch.eye(states, dtype=torch.float64)[state])[cell, bags.genes]
    found = attend(layer, bags, values, state)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    assert expected.std() > 0.1
    trained = [parameter for parameter in layer.parameters() if parameter.numel()]
    of_both = (torch.autograd.grad(each.sin().sum(), trained, allow_unused=True) for each in (found, expected))
    for one, other in zip(*of_both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_gene_reads_itself_by_rounding_alone(make_regulation):
    layer, (bags, values) = make_regulation(members=1), some_bags()
    own = layer.regulators[1]
    other = values.clone()
    other[:, 1] += 5
    found = (attend(layer, bags, each) for each in (values, other))
    change = (next(found) - next(found)).abs()
    assert change[bags.genes == own].max() < 1e-14 and change[bags.genes != own].max() > 1e-3


@pytest.mark.parametrize("faster", [True, False])
def test_a_model_predicts_the_same_either_way(make_regulation, monkeypatch, faster):
    regulation, (bags, values) = Regulation(make_regulation()), some_bags()
    expected = regulation(values, bags.basal)[torch.arange(len(SIZES)).repeat_interleave(SIZES), bags.genes]
    monkeypatch.setattr(module, "faster_than_tables", lambda *_: faster)
    torch.testing.assert_close(regulation.of_bags(bags, values), expected, rtol=1e-12, atol=1e-13)


def test_attention_serves_large_vocabularies(make_regulation):
    """Tables are faster where a bag lists every gene, or where there are few regulators."""
    small = make_regulation()
    assert not faster_than_tables(small, cells=64, genes=64 * 12)
    with torch.device("meta"):
        large = type(small)(1, 20_000, torch.arange(2000), 2, 64)
        few = type(small)(1, 20_000, torch.arange(50), 2, 51)
    assert faster_than_tables(large, cells=64, genes=64 * 2000)
    assert not faster_than_tables(few, cells=64, genes=64 * 2000)
