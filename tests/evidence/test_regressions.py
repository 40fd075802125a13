"""What ridge regressions read of a table: differences within states, folds of whole groups, a
sample of cells.
"""

import numpy as np
import torch

from grn.evidence.linear import without
from grn.evidence.regressions import columns_of, folds_of, held_out_penalty

STATE = np.arange(60) % 3
GENERATOR = np.random.default_rng(0)
VALUES = GENERATOR.gamma(2, 1, (60, 6)) + 2 * STATE[:, None]
BASAL = GENERATOR.uniform(0.5, 1.5, 60)


def test_targets_of_some_cells_keep_the_units_of_all(make_table):
    table, rows = make_table(VALUES, STATE, [1, 4]), torch.tensor([3, 50])
    like = torch.zeros(1).double()
    found, whole = columns_of(table, rows, like), table.targets(slice(None)).double()
    assert found.shape == (2, 6) and torch.equal(found.read(slice(None)), whole[rows])


def test_folds_keep_groups_together_and_the_penalty_follows_the_noise(make_table):
    x = GENERATOR.normal(size=(60, 6)) + 5
    strong = x.copy()
    strong[:, 2:] += 4 * x[:, :1]
    groups = np.arange(60) // 6
    found = []
    for values in (x, strong):
        table = make_table(values, STATE, [0, 1], groups=groups)
        rows = torch.arange(60)
        rest = without(table.membership)
        x = rest(table.inputs[:, :-1])
        fold = folds_of(table, rows, 0).numpy()
        assert (
            all(len(np.unique(fold[groups == group])) == 1 for group in range(10))
            and len(np.unique(fold)) == 5
        )
        found.append(held_out_penalty(table, x, columns_of(table, rows, x).each(rest), rows))
    noise, signal = found
    assert noise > 10 * signal
