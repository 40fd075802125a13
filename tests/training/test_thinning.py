"""Thinned cells: their counts are some of the cell's, their multiplicities and depth those of a shallower cell."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from grn.cells.preprocessing.multiplicity import basal_multiplicity, counting_of, depth_scale, to_multiplicity
from grn.training.thinning import Thinning, shares

CELLS, GENES, TARGET = 40, 200, 500.0


@pytest.mark.parametrize("transform", ["counts", "log1p", "log1p_normalised"])
def test_a_thinned_cell_is_what_its_fewer_counts_give(transform):
    counts = sparse.csr_matrix(np.random.default_rng(0).poisson(3.0, (CELLS, GENES)).astype(np.float32))
    total = np.asarray(counts.sum(1)).ravel()
    scale = depth_scale(total)
    unit = counting_of(transform, total, TARGET).unit
    thinning = Thinning(
        None if unit is None else torch.from_numpy(unit).float(), transform == "log1p_normalised", scale[1]
    )
    x = torch.from_numpy(to_multiplicity(counts, transform, total, TARGET).toarray())
    basal = torch.from_numpy(basal_multiplicity(total, scale))
    share = torch.full((CELLS,), 0.5)
    share[0] = 1
    thin, lower = thinning.thinned(x, basal, torch.arange(CELLS), share, torch.Generator().manual_seed(0))

    assert torch.equal(thin[0], x[0]) and lower[0] == basal[0], "a share of 1 leaves the cell as it was"
    # What the thinned multiplicities say the counts are, at half of the cell's total.
    if transform == "counts":
        found = thin
    else:
        half = counting_of(transform, total / 2, TARGET).unit
        found = torch.expm1(thin.double()) / torch.from_numpy(half)[:, None]
    found, all_counts = found[1:], torch.from_numpy(counts.toarray())[1:]
    assert torch.allclose(found, found.round().to(found.dtype), atol=1e-3) and (found <= all_counts + 1e-3).all()
    assert float(found.sum() / all_counts.sum()) == pytest.approx(0.5, abs=0.02)
    assert torch.allclose(lower[1:], torch.from_numpy(basal_multiplicity(total[1:] / 2, scale)), atol=0.01)


def test_shares_are_between_the_least_and_all():
    found = shares(4000, 0.1, 0.25, torch.Generator().manual_seed(0))
    assert (found == 1).float().mean() == pytest.approx(0.25, abs=0.03) and found.min() >= 0.1
    assert found[found < 1].log().mean() == pytest.approx(np.log(0.1) / 2, abs=0.05)
