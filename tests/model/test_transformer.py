"""The transformer of figure 4 against itself written out cell by cell, its gradients, its start."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from grn.bags import Tokens
from grn.model.reader import ReaderShape
from grn.model.transformer import EPS, Transformer, products

SHAPE = ReaderShape(
    members=2,
    classes=3,
    summary=12,
    hidden=10,
    embedding=6,
    layers=3,
    query_heads=4,
    key_heads=2,
    iterations=2,
)
CELLS, GENES = 5, 9


def transformer(shape: ReaderShape = SHAPE, seed: int = 0) -> Transformer:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        found = Transformer(GENES, shape).double().requires_grad_(False)
        for parameter in found.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        found.mean.add_(torch.rand(GENES))
        found.sd.add_(torch.rand(GENES))
        found.axes.add_(torch.randn_like(found.axes))
    return found


@pytest.fixture
def reader() -> Transformer:
    return transformer()


@pytest.fixture
def cells() -> Tensor:
    """Multiplicities of cells that lack about a third of the genes, and of one that has none."""
    generator = torch.Generator().manual_seed(1)
    found = 3 * torch.rand(CELLS, GENES, generator=generator, dtype=torch.float64)
    found[torch.rand(CELLS, GENES, generator=generator) < 0.3] = 0
    found[-1] = 0
    return found


def read(reader: Transformer, cells: Tensor) -> Tensor:
    return reader.summaries(cells, reader.standardised(cells))


def written_out(reader: Transformer, strength: Tensor, member: int) -> Tensor:
    """One member's summary of one cell, from the signed multiplicities of all genes [N]: every
    token in every layer.
    """
    shape = reader.shape
    width, shared = shape.summary // shape.query_heads, shape.query_heads // shape.key_heads
    h = reader.embedding[member]  # genes, the basal gene, the identity token
    m = torch.cat([strength, torch.tensor([1.0, 0.0]).double()])

    def norm(h: Tensor) -> Tensor:
        return h / (h.square().mean(-1, keepdim=True) + EPS).sqrt()

    for layer in reader.layers:
        x = norm(h)
        q, k, v = (x @ each[member] for each in (layer.query, layer.key, layer.value))
        heads = []
        for head in range(shape.query_heads):
            of = slice(head // shared * width, (head // shared + 1) * width)
            own = q[:, head * width : (head + 1) * width]
            s = m * (own @ k[:, of].T)
            tiny = 1e-6 * own.square().sum(1, keepdim=True) * (m.square() @ k[:, of].square()).sum()
            heads.append(s @ v[:, of] / (s.square().sum(1, keepdim=True) + tiny).sqrt())
        h = h + torch.cat(heads, 1) @ layer.output[member]
        for _ in range(shape.iterations):
            up = norm(h) @ layer.up[member]
            h = h + F.gelu(up) @ layer.down[member]
    return norm(h)[-1, -shape.summary :].flatten()


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_is_figure_4_written_out(cells, layers):
    reader = transformer(replace(SHAPE, layers=layers))
    strength = reader.standardised(cells) * (cells > 0)
    expected = [
        [written_out(reader, each, member) for each in strength] for member in range(SHAPE.members)
    ]
    expected = torch.stack([torch.stack(each) for each in expected])
    torch.testing.assert_close(read(reader, cells), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("layers", [1, 3])
def test_tokens_that_are_filled_up_say_the_same(cells, layers):
    reader = transformer(replace(SHAPE, layers=layers))
    tokens = Tokens.of(reader.strength(cells, reader.standardised(cells)))
    filled = tokens.filled_up()
    assert len(tokens.gene) < len(filled.gene)
    torch.testing.assert_close(reader.read(filled), reader.read(tokens))


def test_gradients_under_autocast_are_those_without_it_but_for_rounding(cells):
    """Of the middle one of five draws: in a few, a small norm makes rounding large."""
    towards = torch.randn(SHAPE.summary, generator=torch.Generator().manual_seed(2))
    alike = []
    for seed in range(5):
        reader, found = transformer(seed=seed).float().requires_grad_(True), []
        leaves = [reader.embedding, reader.layers[0].up]
        for enabled in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                summaries = read(reader, cells.float())
            found.append(torch.autograd.grad((summaries.float() @ towards).sum(), leaves))
        assert all(each.dtype == torch.float32 for each in found[1])
        alike.append(
            [
                float(torch.cosine_similarity(exact.flatten(), rounded.flatten(), dim=0))
                for exact, rounded in zip(*found, strict=True)
            ]
        )
    assert torch.tensor(alike).median(0)[0].min() > 0.99


@pytest.mark.parametrize("chunk", [1, 4, 7, 19, 20, 100])
def test_products_are_the_same_however_many_tokens_are_summed_at_a_time(chunk):
    x, y = torch.randn(2, 2, 20, 3).unbind()
    torch.testing.assert_close(products(x, y, chunk), torch.einsum("ptd,ptf->pdf", x, y))


def test_gradients_are_those_of_differences(cells):
    reader = transformer()
    used = {name: each for name, each in reader.named_parameters() if name != "predict"}

    def said(*values: Tensor):
        return functional_call(reader, dict(zip(used, values, strict=True)), (cells,))

    given = [each.requires_grad_() for each in used.values()]
    assert torch.autograd.gradcheck(said, given, fast_mode=True)


def test_genes_start_at_the_leading_directions_of_a_members_cells():
    """Of cells that differ along one direction, but for noise."""
    generator = torch.Generator().manual_seed(4)
    direction = torch.randn(50, generator=generator)
    cells = (2 + torch.randn(200, 1, generator=generator) * direction / 4).clamp(min=0.01)
    cells += 0.1 * torch.rand(200, 50, generator=generator)
    torch.manual_seed(5)
    reader = Transformer(50, replace(SHAPE, summary=8))
    reader.mean, reader.sd = cells.mean(0), cells.std(0)
    fold = np.arange(200) % 2
    cells[1::2] = cells[1::2].flip(1)  # the second member's cells differ along another direction
    reader.start(sp.csr_matrix(cells.numpy()), fold, np.full(200, -1))
    for member, others in ((0, 1), (1, 0)):
        basis = torch.linalg.qr(reader.embedding[member, :50].detach())[0]
        for number, inside in ((others, True), (member, False)):
            leading = torch.linalg.svd(
                reader.standardised(cells[fold == number]), full_matrices=False
            )[2][0]
            assert (float((leading @ basis).norm()) > 0.98) == inside


def test_genes_start_at_what_tells_types_apart():
    """Two types differ in four genes of sixty, and nine programmes vary more than these."""
    generator = torch.Generator().manual_seed(8)
    programmes = torch.randn(9, 60, generator=generator)
    cells = 8 + torch.randn(400, 9, generator=generator) @ programmes / 4
    cells += torch.randn(400, 60, generator=generator) / 4
    labels = np.arange(400) // 2 % 2
    difference = torch.zeros(60)
    difference[:4] = 1.5
    cells[labels == 1] += difference
    reader = Transformer(60, replace(SHAPE, summary=8))
    reader.mean, reader.sd = cells.mean(0), cells.std(0)

    def inside(known: np.ndarray) -> float:
        """Return how much of the types' difference the first member's loadings span, 0 to 1."""
        torch.manual_seed(5)
        torch.nn.init.normal_(reader.embedding)
        reader.start(sp.csr_matrix(cells.numpy()), np.arange(400) % 2, known)
        basis = torch.linalg.qr(reader.embedding[0, :60].detach())[0]
        way = difference / reader.sd
        return float((way / way.norm() @ basis).norm())

    assert inside(labels) > 0.9 > 0.7 > inside(np.full(400, -1))
    # a member does not learn from the labels of the cells that judge it
    of_others = np.where(np.arange(400) % 2 == reader.held_out[0].item(), labels, -1)
    assert inside(of_others) < 0.7


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_reads_what_a_processor_reads_but_for_16_bits():
    torch.manual_seed(0)
    genes, found = 300, []
    exact, cells = Transformer(genes, replace(SHAPE, summary=64)), 3 * torch.rand(20, genes)
    torch.nn.init.normal_(exact.head)
    for device in ("cpu", "cuda"):
        reader, some = exact.to(device), cells.to(device)
        summaries = read(reader, some)
        loss = (summaries @ reader.head).log_softmax(-1)[..., 0].sum()
        slopes = torch.autograd.grad(
            loss, [reader.embedding, reader.layers[0].key, reader.layers[1].up]
        )
        found.append([each.detach().cpu().flatten() for each in (summaries, *slopes)])
    for one, other in zip(*found, strict=True):
        assert torch.cosine_similarity(one, other, dim=0) > 0.995
