"""What a run prepares before its first step: folds, units and penalties of each member."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from grn.cells.load import load_cells
from grn.config.files import change_config
from grn.config.schema import TrainerConfig
from grn.evidence.cell_table import CellTable
from grn.evidence.levels import Levels
from grn.evidence.states import states_of
from grn.runtime.errors import ConfigError
from grn.runtime.messages import silent
from grn.training import building, machine
from grn.training.building import (
    FEWEST_FOLDS,
    FREER,
    data_module,
    folds_of,
    folds_of_run,
    prepare,
)
from grn.training.machine import cells_of_step


@pytest.fixture
def loaded(make_config):
    config = make_config()
    cells, split = load_cells(config.data)
    return config, cells, split, states_of(cells, 0)


def prepared(loaded, say=silent, **changes):
    config, cells, split, states = loaded
    return prepare(change_config(config, changes), cells, split, states, say)


def test_folds_are_stratified_and_those_of_other_cells_are_none(loaded):
    """Also over cells without a label. The network of a run is read with the folds that it has."""
    config, cells, split, states = loaded
    fit, again = prepared(loaded), {"members": config.model.members, "seed": config.trainer.seed}
    np.testing.assert_array_equal(folds_of_run(cells, split, states, **again), fit.fold)
    assert (fit.fold[split.test] == -1).all()
    assert set(fit.fold[split.train]) == set(range(FEWEST_FOLDS))
    cells = replace(cells, labels=np.where(np.arange(80) % 3 == 0, -1, cells.labels))
    found = folds_of(cells, split.train, states, 5, 0)
    for label in (-1, 0, 1):
        sizes = np.bincount(found[cells.labels[split.train] == label], minlength=5)
        assert sizes.max() - sizes.min() <= 1
    assert (cells.labels[prepared((config, cells, split, states)).judging] >= 0).all()


def test_no_donor_is_both_learned_and_held_out_by_a_member(loaded):
    config, cells, split, states = loaded
    donor = np.arange(80) // 7
    fit = prepared((config, replace(cells, groups=donor), split, states))
    assert len(np.unique(fit.fold[split.train])) == FEWEST_FOLDS
    for one in np.unique(donor):
        assert len(set(fit.fold[(donor == one) & (fit.fold >= 0)])) <= 1


def test_each_member_knows_the_means_of_the_cells_that_it_learns_from(loaded, monkeypatch):
    _, cells, split, states = loaded
    monkeypatch.setattr(building, "levels_of", lambda *_: None)
    fit, table = prepared(loaded), CellTable.of(cells, split.train, states.membership)
    model, own = fit.model, fit.fold[split.train]
    for member in range(2):
        centre, level = table.means(np.flatnonzero(own != member))
        for block, genes, unit in zip(
            model.blocks, (model.regulators, model.targets), (1, model.unit), strict=True
        ):
            torch.testing.assert_close(block.centre[member], centre / unit)
            torch.testing.assert_close(block.level[member], level[:, genes])
            torch.testing.assert_close(block.square[member], (centre / unit).square() + 1)
    torch.testing.assert_close(model.sd, table.sd)
    torch.testing.assert_close(model.identity.sd, table.spread)
    torch.testing.assert_close(model.share, torch.as_tensor(states.membership[split.train]).mean(0))
    assert not torch.equal(*model.blocks[0].centre)


def test_where_differences_between_states_count_training_mixes_means_by_that_part(
    loaded, monkeypatch
):
    """And no predictions do, which know the means of states in full."""
    monkeypatch.setattr(building, "levels_of", lambda *_: Levels(0.6, 0.3, 0.2, 0.6))
    _, cells, split, states = loaded
    lines: list[str] = []
    model = prepared(loaded, lines.append).model
    assert "count as regulation" in lines[0] and model.partial_levels and model.trains_otherwise
    table = CellTable.of(cells, split.train, states.membership, levels=0.6)
    torch.testing.assert_close(model.sd, table.sd)
    for block in model.blocks:
        torch.testing.assert_close(block.mixed, 0.4 * torch.eye(2) + 0.6 * model.share)
        assert not torch.equal(block.centre[:, 0], block.centre[:, 1])
        assert not torch.equal(block.train().means(block.level), block.level)
        assert block.eval().means(block.level) is block.level


def test_training_knows_more_than_predictions_where_states_were_found(loaded, monkeypatch):
    monkeypatch.setattr(building, "levels_of", lambda *_: Levels(0.0, 0.3, 0.3, 0.2))
    config, cells, split, states = loaded
    plain, found = (
        prepared((config, cells, split, replace(states, origin=origin))).model
        for origin in ("labels", "found")
    )
    assert not plain.trains_otherwise and not plain.infers_states
    assert all(torch.equal(block.mixed, torch.eye(2)) for block in plain.blocks)
    assert found.infers_states and found.trains_otherwise


def test_blocks_start_at_the_exact_solution_and_states_at_a_regression(loaded):
    """Of every member, and only where genes are learned."""
    lines: list[str] = []
    model = prepared(loaded, lines.append).model
    assert any(line.startswith("Signed blocks start at the exact solution") for line in lines)
    for block in model.blocks:
        pick = torch.arange(block.genes)
        one, other = slopes = block.slopes(block.scores(pick), pick)
        assert (slopes.abs().amax((1, 2, 3)) > 0.01).all() and not torch.allclose(one, other)
    assert (model.basal.state.abs().amax((1, 2)) > 0).all()
    types = prepared(loaded, **{"objectives.masked_multiplicity.weight": 0}).model
    assert (types.basal.state == 0).all() and types.blocks[1].embedding.query.std() > 0


def test_members_take_the_chosen_penalties_in_turn(loaded, monkeypatch):
    """Over the cells that they learn from; the last is that of block 1. Every second member's
    states are freer. A penalty that is given is that of ridge.
    """
    chosen = [building.Penalty(lam, 0.5, 0.1) for lam in (10.0, 20.0, 5.0)]
    monkeypatch.setattr(building, "choose_penalties_of_blocks", lambda *_: chosen)
    fit = prepared(loaded, **{"model.members": 3})
    learned = [int(((fit.fold >= 0) & (fit.fold != member)).sum()) for member in range(3)]
    lam, rho, t = fit.model.penalty.T.numpy()
    expected = np.array([10, 20, 10, 5]) / [*learned, np.mean(learned)]
    np.testing.assert_allclose(lam, expected, rtol=1e-6)
    assert rho.tolist() == [0.5, 0.5 * FREER, 0.5, 0.5]
    np.testing.assert_allclose(t, 0.1, rtol=1e-6)
    given = prepared(loaded, **{"model.penalty": 7.0}).model.penalty.numpy()
    np.testing.assert_allclose(given[:-1, 0] * learned[:2], 7, rtol=1e-6)
    assert given[0, 2] == 0


def test_a_member_validates_the_cells_that_it_has_not_learned_from(loaded):
    config, cells, split, _ = loaded
    fit = prepared(loaded)
    data = data_module(config.data, config.trainer, cells, split, fit)
    assert data.judged.tolist() == np.flatnonzero((fit.fold == 0) | (fit.fold == 1)).tolist()
    types = prepared(loaded, **{"objectives.masked_multiplicity.weight": 0})
    judged = data_module(config.data, config.trainer, cells, split, types).judged
    assert set(types.fold[judged]) == set(types.model.identity.held_out.tolist())


def test_more_scores_than_memory_holds_are_refused(loaded, monkeypatch):
    monkeypatch.setattr(building, "MOST_SCORES", 100)
    with pytest.raises(
        ConfigError, match=r"4 regulators of 16 genes in 2 states and 2 members"
    ) as caught:
        prepared(loaded)
    assert caught.value.field == "data.regulators"


def test_a_step_has_more_cells_of_more_and_most_where_they_cost_no_time(monkeypatch):
    settings = TrainerConfig()
    monkeypatch.setattr(machine, "uses_gpu", lambda _: False)
    assert [cells_of_step(settings, cells) for cells in (1000, 3200, 10**6)] == [128, 200, 256]
    monkeypatch.setattr(machine, "processes", lambda _: 2)
    assert cells_of_step(settings, 10**6) == 128  # of each process
    monkeypatch.setattr(machine, "uses_gpu", lambda _: True)
    assert [cells_of_step(settings, cells) for cells in (1000, 20_000, 10**6)] == [128, 625, 1024]
    assert cells_of_step(settings.model_copy(update={"batch_size": 7}), 20_000) == 7
