"""Direct effects: what a chain of regulators passes on is taken out, and nothing else."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grn.networks.evidence.direct import MOST, Paths, share_of_counting

# Regulators A, B, U; target C.
A, B, U, C = range(4)


def levels(cells: int, direct: float, seed: int = 0) -> torch.Tensor:
    """Gaussian levels [C, 4] of A, B = 0.8 A + noise, U, which is alone, and C = 0.7 B + direct A + noise."""
    generator = torch.Generator().manual_seed(seed)
    a, u, of_b, of_c = torch.randn(4, cells, generator=generator, dtype=torch.float64)
    b = 0.8 * a + 0.6 * of_b
    return torch.stack([a, b, u, 0.7 * b + direct * a + 0.5 * of_c], 1)


def regression(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.linalg.lstsq(x, y).solution


def total_effects(m: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    """[4, 3]: regression of each gene's level on the counts of the other regulators."""
    found = torch.zeros(4, 3, dtype=torch.float64)
    for gene in range(4):
        others = [j for j in range(3) if j != gene]
        found[gene, others] = regression(m[:, others], level[:, gene])
    return found


def chain(direct: float, noise: float = 0.5) -> tuple[torch.Tensor, Paths]:
    """Total effects, and the paths that are known: A with B and C, and B with C; U has no edge."""
    level = levels(200_000, direct)
    m = level[:, :3] + noise**0.5 * torch.randn(len(level), 3, generator=torch.Generator().manual_seed(1)).double()
    total = total_effects(m, level)
    certain = torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0]], dtype=torch.float64)
    cells = torch.full((len(m),), 1 / len(m), dtype=torch.float64)
    of_counting = share_of_counting(m, cells, torch.full((3,), noise, dtype=torch.float64), total[:3])
    return total, Paths(certain, of_counting, torch.arange(3), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("noise", [0.05, 0.5, 1.0])
def test_what_a_chain_passes_on_is_taken_out(noise):
    """Noise in the counts of B leaves A a part of the effect that goes through B."""
    total, paths = chain(0.0, noise)
    direct = paths.direct(total)
    assert total[C, A] > 0.02 and direct[C, A] < 0.15 * total[C, A] and direct[C, B] > 0.7 * total[C, B]


@pytest.mark.parametrize("effect", [0.6, -0.6])
def test_an_effect_beside_a_chain_stays(effect):
    total, paths = chain(effect)
    direct = paths.direct(total)
    assert direct[C, A] * effect > 0
    assert abs(float(direct[C, A])) > 0.5 * abs(float(total[C, A]))


def test_the_share_of_counting_is_what_the_best_estimate_of_a_level_takes_from_the_others():
    """b~ = (1 - a) m_b + a p.m: regression of the level on all counts has these coefficients."""
    level = levels(400_000, 0.0)
    m = level[:, :3] + 0.7 * torch.randn(len(level), 3, generator=torch.Generator().manual_seed(2)).double()
    among = torch.zeros(3, 3, dtype=torch.float64)
    for b in range(3):
        others = [j for j in range(3) if j != b]
        among[b, others] = regression(m[:, others], m[:, b])
    cells = torch.full((len(m),), 1 / len(m), dtype=torch.float64)
    a = share_of_counting(m, cells, torch.full((3,), 0.49, dtype=torch.float64), among)
    for b in range(3):
        best = regression(m, level[:, b])
        expected = a[b] * among[b]
        expected[b] = 1 - a[b]
        torch.testing.assert_close(best, expected, atol=0.01, rtol=0)


@given(seed=st.integers(0, 2**32 - 1))
def test_direct_effects_lie_between_0_and_the_total(seed):
    generator = torch.Generator().manual_seed(seed)
    total = torch.randn(7, 4, generator=generator)
    paths = Paths(
        torch.rand(7, 4, generator=generator), MOST * torch.rand(4), torch.tensor([0, 2, 3, 6]), torch.ones(4)
    )
    direct = paths.direct(total)
    assert ((direct * total >= 0) & (direct.abs() <= total.abs())).all()
    nothing = replace(paths, certain=torch.zeros(7, 4)), replace(paths, by_counting=torch.zeros(4))
    for same in nothing:
        torch.testing.assert_close(same.direct(total), total)


def test_other_units_of_the_regulators_change_the_slopes_alone():
    """A regulator in a unit twice as large has twice the slope, before and after."""
    total, paths = chain(0.3)
    factor = torch.tensor([2.0, 0.5, 3.0], dtype=torch.float64)
    torch.testing.assert_close(paths.in_units(factor).direct(total * factor), paths.direct(total) * factor)
