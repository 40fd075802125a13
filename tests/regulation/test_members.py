"""Training the members: never worse than their start on their own held-out cells, which they never read otherwise."""

from functools import partial
from itertools import count, repeat

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from grn.cells.preprocessing.moments import mean_and_sd
from grn.model.signed.regulation_layer import RegulationLayer
from grn.regulation import members as module
from grn.regulation.cell_table import CellTable, TrainingCells, set_units
from grn.regulation.folds import held_out_cells, padded
from grn.regulation.linear import Penalties
from grn.regulation.members import RegulationSettings, held_out_errors, start, train_members

CELLS, GENES, STATES, MEMBERS = 200, 12, 2, 3
REGULATORS = np.array([0, 2, 5])
CONFIG = RegulationSettings(heads=2, width=6, steps=48, batch_size=32, learning_rate=0.02)


def table_and_layer(states: int = STATES, *, curved: bool = True, seed: int = 0) -> tuple[RegulationLayer, CellTable]:
    """A layer and its cells, whose targets saturate with the regulators: a linear start can be improved."""
    generator = np.random.default_rng(seed)
    values = generator.gamma(2, 1, (CELLS, GENES))
    sums = values[:, REGULATORS] @ generator.normal(size=(len(REGULATORS), GENES))
    values += 4 + (6 * np.tanh(sums) if curved else 0.0 * sums)
    multiplicity = sp.csr_matrix(values.clip(0).astype(np.float32))
    membership = np.eye(states, dtype=np.float32)[np.arange(CELLS) % states]
    cells = TrainingCells(
        multiplicity,
        np.ones(CELLS, np.float32),
        np.arange(CELLS),
        REGULATORS,
        *mean_and_sd(multiplicity),
        states=membership,
    )
    torch.manual_seed(seed)
    layer = RegulationLayer(MEMBERS, GENES, torch.as_tensor(REGULATORS), 2, 6, states, states > 1)
    set_units(layer, cells)
    layer.predicts_ranks.copy_(torch.tensor([0, 1, 0]))
    layer.penalty.fill_(10.0)
    layer.ratio.fill_(0.7)
    return layer, CellTable(layer, cells)


def parts() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return held_out_cells(np.arange(CELLS), None, range(MEMBERS), 5, torch.Generator().manual_seed(1))


def started(seed: int = 0, **options) -> tuple[RegulationLayer, CellTable]:
    layer, table = table_and_layer(seed=seed, **options)
    for member, rows in enumerate(parts()[0]):
        start(layer, member, table, rows, Penalties(torch.full((GENES,), 10.0), 0.7, 1.0))
    return layer, table


def errors_of(layer: RegulationLayer, table: CellTable) -> torch.Tensor:
    return held_out_errors(layer, table, *padded(parts()[1]))


def trained(layer: RegulationLayer, table: CellTable, **changes) -> torch.Tensor:
    training, held_out = parts()
    config = CONFIG.model_copy(update=changes)
    return train_members(layer, table, config, training=training, held_out=held_out, seed=0)


def parameters(layer: RegulationLayer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}


@pytest.mark.parametrize("rate", [0.003, 0.02, 5.0])
@pytest.mark.parametrize("states", [1, STATES])
def test_held_out_error_never_rises_above_that_of_the_start(rate, states):
    """Whatever the learning rate; what is returned is the error of the weights that are kept."""
    layer, table = started(states=states)
    before = errors_of(layer, table)
    found = trained(layer, table, learning_rate=rate)
    assert (found <= before + 1e-7).all()
    torch.testing.assert_close(errors_of(layer, table), found)


def test_training_lowers_it_where_the_start_can_be_improved():
    """On the mean of two draws: where a single one ends depends on the rounding of its first steps."""
    changes = []
    for seed in range(2):
        layer, table = started(seed=seed)
        before = errors_of(layer, table)
        found = trained(layer, table, steps=RegulationSettings().steps)
        assert (found <= before).all()
        changes.append(float(found.mean() / before.mean()))
    assert np.mean(changes) < 0.99, changes


@pytest.mark.parametrize("changes", [{"steps": 0}, {"learning_rate": 5.0, "steps": 16}])
def test_the_start_is_kept_where_there_are_no_steps_and_where_all_of_them_are_worse(changes):
    """To the last bit."""
    layer, table = started(curved=False)
    before, error = parameters(layer), errors_of(layer, table)
    torch.testing.assert_close(trained(layer, table, **changes), error)
    for name, tensor in before.items():
        assert torch.equal(layer.get_parameter(name), tensor), name


def test_each_member_is_kept_where_its_own_error_was_least(monkeypatch):
    """Also where others have theirs elsewhere, or nowhere after the start."""
    layer, table = started()
    errors = iter([[5.0, 5, 5], [4, 6, 6], [3, 6, 6], [9, 2, 6], [9, 9, 9]])
    seen = []
    monkeypatch.setattr(module, "VALIDATIONS", 4)
    monkeypatch.setattr(
        module, "held_out_errors", lambda *_: seen.append(parameters(layer)) or torch.tensor(next(errors))
    )
    assert trained(layer, table, steps=8).tolist() == [3, 2, 5]
    for name, tensor in layer.named_parameters():
        for member, where in enumerate((2, 3, 0)):
            assert torch.equal(tensor[member], seen[where][name][member]), name
    assert not torch.equal(seen[2]["query"], seen[3]["query"])


@pytest.mark.parametrize("of_whom", range(MEMBERS))
def test_held_out_cells_are_read_for_the_error_alone(monkeypatch, of_whom):
    """Other targets in the cells that a member holds out: neither its start nor its steps read them."""
    training, held_out = parts()
    weights = []
    for poison in (0.0, 1e3):
        errors = map(torch.full, repeat((MEMBERS,)), count(9, -1))  # every validation is better than the one before
        monkeypatch.setattr(module, "held_out_errors", lambda *given, errors=errors: next(errors))
        layer, table = table_and_layer()
        for tensor in (table.values.dense, table.ranks.dense, table.inputs):
            tensor[held_out[of_whom]] += poison
        start(layer, of_whom, table, training[of_whom], Penalties(torch.full((GENES,), 10.0), 0.7, 1.0))
        begun = parameters(layer)
        trained(layer, table, steps=12)
        weights.append(({name: each[of_whom] for name, each in begun.items()}, parameters(layer)))
    (start_one, one), (start_other, other) = weights
    for name in one:
        assert torch.equal(start_one[name], start_other[name]), name
        assert torch.equal(one[name][of_whom], other[name][of_whom]), name
        assert not torch.equal(one[name][of_whom], start_one[name]) or one[name].numel() == 0, name
    others = [m for m in range(MEMBERS) if m != of_whom]
    assert all(not torch.equal(one["query"][m], other["query"][m]) for m in others), "they do read these cells"


def test_the_held_out_error_counts_every_held_out_cell_once():
    """Of lists of different lengths, in batches of any size; ranks for members that predict them."""
    layer, table = started()
    held_out = [torch.arange(7), torch.arange(7, 60), torch.tensor([3])]
    found = held_out_errors(layer, table, *padded(held_out))
    for member, rows in enumerate(held_out):
        targets = (table.ranks if member == 1 else table.values)(rows)
        predicted = layer.predict(table.inputs[rows], table.states[rows])[member]
        assert float(found[member]) == pytest.approx(float((predicted - targets).square().mean().detach()), rel=1e-5)
    assert (found > 0.1).all()


@pytest.mark.parametrize("deviates", [False, True])
def test_training_with_few_genes_at_a_time_is_training_with_all_at_once(monkeypatch, deviates):
    """Only the order of a few sums differs."""

    def trained(scores: int) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer = RegulationLayer(2, 11, torch.tensor([0, 4, 7, 10]), 2, 3, states=2, deviates=deviates).double()
        for parameter in layer.parameters():
            parameter.data.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))
        monkeypatch.setattr(module, "SCORES", scores)
        table = Table(40, 11, 4)
        rows = torch.arange(40)
        settings = RegulationSettings(members=2, steps=5, batch_size=8)
        error = train_members(layer, table, settings, training=[rows[:30]] * 2, held_out=[rows[30:]] * 2, seed=0)
        assert (len(module.genes_at_once(layer)) > 2) == (scores < 1000)
        return [error, *(parameter.detach() for parameter in layer.parameters())]

    for one, other in zip(trained(25), trained(10**6), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


class Table:
    """Cells of two states, as a CellTable gives them."""

    def __init__(self, cells: int, genes: int, regulators: int):
        generator = torch.Generator().manual_seed(1)
        draw = partial(torch.rand, dtype=torch.float64, generator=generator)
        self.inputs, self.targets = draw(cells, regulators + 1), draw(cells, genes)
        self.states = torch.nn.functional.one_hot(torch.arange(cells) % 2, 2).double()

    def batch(self, rows, predicts_ranks):
        return self.inputs[rows], self.states[rows], self.targets[rows]
