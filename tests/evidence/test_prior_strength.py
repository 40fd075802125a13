"""A prior is used where it helps to predict held-out cells, and as much as it helps."""

import numpy as np
import pytest

from grn.evidence.prior_strength import prior_factor

REGULATORS, GENES, CELLS = (
    30,
    50,
    80,
)  # so few cells that a weaker penalty of all pairs alike would help, too


def test_a_prior_that_helps_penalises_what_it_does_not_list(make_table):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(CELLS, REGULATORS))
    edges = np.zeros((GENES, REGULATORS))
    for gene in range(REGULATORS, GENES):
        edges[gene, generator.choice(REGULATORS, 2, replace=False)] = 1
    y = x @ edges[REGULATORS:].T + generator.normal(size=(CELLS, GENES - REGULATORS))
    table = make_table(np.concatenate([x, y], 1) + 6, np.zeros(CELLS, int), range(REGULATORS))
    fold = np.arange(CELLS) % 5
    factor, found = prior_factor(table, edges, fold, 10.0)
    assert found.with_prior < found.without and factor.shape == (GENES, REGULATORS)
    listed, unlisted = factor[edges == 1], factor[edges == 0]
    assert len(listed.unique()) == 1 and unlisted.min() > 0
    assert found.unlisted < 0.7 and float(unlisted[-1] / listed[0]) == pytest.approx(
        found.unlisted, rel=1e-5
    )
    useless, found = prior_factor(table, generator.permuted(edges, axis=1), fold, 10.0)
    assert useless is None and found.unlisted == 1
