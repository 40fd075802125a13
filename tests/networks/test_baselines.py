"""Pearson, Spearman and ridge against NumPy, SciPy and scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import RidgeCV

from grn.networks.baselines import PENALTIES, pearson, ridge

GENES = ["R1", "NA", "R2", "x", "nan", "flat"]
REGULATORS = ["R2", "R1", "nan"]


@pytest.fixture
def matrix():
    generator = np.random.default_rng(1)
    values = generator.poisson(2, (60, 6)).astype(np.float32)
    values[:, 3] += 2 * values[:, 0] - values[:, 2] + 4
    values[:, 4] += values[:, 0]
    values[:, 5] = 0.1
    return values


def weights(table):
    return {(edge.source, edge.target): edge.weight for edge in table.itertuples()}


@pytest.mark.parametrize("method", [pearson, ridge])
def test_every_regulator_has_every_other_gene_as_a_target(method, matrix):
    table = method(matrix, GENES, REGULATORS)
    assert list(table) == ["source", "target", "weight"]
    expected = {(source, target) for source in REGULATORS for target in GENES if source != target}
    assert set(weights(table)) == expected and len(table) == len(expected)
    assert table["weight"].abs().is_monotonic_decreasing
    assert all(weight == 0 for (_, target), weight in weights(table).items() if target == "flat")


def test_correlations(matrix):
    found = weights(pearson(matrix, GENES, REGULATORS))
    for (source, target), weight in found.items():
        if target != "flat":
            one, other = (matrix[:, GENES.index(name)] for name in (source, target))
            assert weight == pytest.approx(np.corrcoef(one, other)[0, 1])


@pytest.mark.parametrize("cells", [60, 4])
def test_ridge_is_scikit_learn_s_for_every_target_the_target_itself_left_out(matrix, cells):
    """Fewer cells than genes too."""
    matrix = matrix[:cells]
    found = weights(ridge(matrix, GENES, REGULATORS))
    sd = matrix.std(0)
    values = (matrix - matrix.mean(0)) / np.where(sd > 1e-6, sd, 1)
    for target in GENES[:-1]:
        inputs = [name for name in REGULATORS if name != target]
        model = RidgeCV(PENALTIES).fit(
            values[:, [GENES.index(name) for name in inputs]], values[:, GENES.index(target)]
        )
        assert [found[name, target] for name in inputs] == pytest.approx(
            model.coef_, rel=1e-4, abs=1e-7
        )
