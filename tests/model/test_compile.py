"""The compiled model is the same model; it is traced whole, and once for all sizes of bags and all layers."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import grn.model.compile
from grn.bags import Bags
from grn.config.schema import ModelConfig
from grn.model.compile import Fusible, fusible, fusing
from grn.model.transformer import Block, Model


def packed(*sizes: int) -> Bags:
    random = torch.Generator().manual_seed(sum(sizes))
    genes = torch.cat([torch.randperm(40, generator=random)[:size].sort().values for size in sizes])
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    return Bags(genes, torch.rand(len(genes), generator=random, dtype=torch.float64) + 0.1, offsets)


def gradients(model: Model, bags: Bags) -> list[torch.Tensor]:
    model.zero_grad()
    found = model(bags)
    (found.multiplicity.square().sum() + found.cell.square().sum()).backward()
    return [found.multiplicity.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("regulators", [None, (0, 3, 5, 17)])
def test_the_fused_model_predicts_and_trains_as_the_plain_one(monkeypatch, regulators):
    """Traced without a graph break; bags of other sizes, and the second layer, use the same trace."""
    monkeypatch.setattr(grn.model.compile.torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    for name in ("project", "combine"):
        monkeypatch.setattr(Block, name, fusible(getattr(Block, name).__wrapped__))
    monkeypatch.setattr(Model, "read_out", fusible(Model.read_out.__wrapped__))
    chosen = None if regulators is None else torch.tensor(regulators)
    model = Model(ModelConfig(width=16, dropout=0.0), 40, regulators=chosen).double()
    torch.nn.init.normal_(model.multiplicity)
    sizes = [(7, 12, 9), (11, 3, 20, 8), (30, 25)]
    plain = [gradients(model, packed(*each)) for each in sizes]
    torch._dynamo.reset()
    with fusing(model):
        for number, (each, expected) in enumerate(zip(sizes, plain, strict=True)):
            with torch.compiler.set_stance("fail_on_recompile" if number else "default"):
                torch.testing.assert_close(gradients(model, packed(*each)), expected)
    assert not any(part.fused for part in model.modules() if isinstance(part, Fusible))


def test_nothing_is_compiled_outside_fusing(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("compiled")

    monkeypatch.setattr(grn.model.compile.torch, "compile", refuse)

    class Part(Fusible):
        @fusible
        def double(self, x: int) -> int:
            return 2 * x

    part = Part()
    assert part.double(3) == 6
    with fusing(part, wanted=False):
        assert part.double(3) == 6
    with fusing(part), pytest.raises(AssertionError, match="compiled"):
        part.double(3)
    assert part.double(3) == 6
