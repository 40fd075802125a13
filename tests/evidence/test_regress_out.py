"""Programmes whose scores are regressed out: nothing that two genes have in common by them is an
edge or a part of the exact start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from anndata import AnnData

from grn.cells.genes.programmes import parts_of, score
from grn.cells.load import load_cells
from grn.config.schema import DataConfig
from grn.evidence.cell_table import CellTable
from grn.evidence.exact import solve
from grn.evidence.penalties import Shadow
from grn.evidence.q_values import SIGNIFICANT, evidence_of
from grn.model.penalty import Penalty
from grn.runtime.errors import DataError

CELLS, REGULATORS = 600, np.arange(6)
OF_PROGRAMME = [20, 21, 22]  # genes that nobody regulates, as regulator 0


def table_with_a_programme(make_table) -> tuple[CellTable, np.ndarray]:
    """The cells of two states, and the programme's activity [C], which regulator 0 and some genes
    follow."""
    generator = np.random.default_rng(11)
    state, activity = np.arange(CELLS) % 2, generator.standard_normal(CELLS)
    values = generator.standard_normal((CELLS, 24)) + 2 * state[:, None]
    values[:, [0, *OF_PROGRAMME]] += 1.5 * activity[:, None]
    for regulator in REGULATORS[1:]:  # two genes each
        values[:, [9 + regulator, 14 + regulator]] += values[:, [regulator]]
    return make_table(values + 9, state, REGULATORS), activity


def certain(table: CellTable) -> set[tuple[int, int]]:
    """Regulator and gene."""
    target, regulator = np.nonzero(evidence_of(table, seed=0, least_cells=1).q <= SIGNIFICANT)
    return set(zip(regulator.tolist(), target.tolist(), strict=True))


def test_pairs_that_a_programme_connects_are_not_certain_once_it_is_regressed_out(make_table):
    table, activity = table_with_a_programme(make_table)
    through = {(0, gene) for gene in OF_PROGRAMME}
    planted = {(one, place + one) for one in REGULATORS[1:].tolist() for place in (9, 14)}
    assert through | planted <= certain(table)
    left = certain(replace(table, programmes=activity[:, None].astype(np.float32)))
    assert planted <= left and not through & left


def test_the_exact_start_has_no_slope_through_a_programme(make_table):
    table, activity = table_with_a_programme(make_table)
    fold = np.arange(CELLS) // 2 % 5

    def slopes(table: CellTable) -> torch.Tensor:
        shadow = Shadow(table, fold, 1, genes=np.array([10, *OF_PROGRAMME]))
        found = solve(shadow.of_learned, Penalty(1.0, 0.0)).of_states(2).mean(0)
        return found[:2].abs()

    with_it = slopes(table)
    without = slopes(replace(table, programmes=activity[:, None].astype(np.float32)))
    assert with_it[0, 1:].min() > 0.3 and without[0, 1:].max() < 0.1
    assert without[1, 0] > 0.9 * with_it[1, 0]


def named_cells() -> AnnData:
    generator = np.random.default_rng(3)
    names = [*(f"RPL{number}" for number in range(3, 9)), "PCNA", "MCM5", "MKI67", "TOP2A"]
    names += [f"G{number}" for number in range(30)]
    counts = generator.poisson(3.0, (60, len(names))).astype(np.float32)
    counts[:, :6] *= generator.integers(1, 4, (60, 1))
    cells = AnnData(counts)
    cells.var_names = names
    return cells


def test_scores_are_of_all_genes_of_a_programme_whichever_are_chosen():
    cells = named_cells()
    given = {"path": "memory", "regulators": ["G0", "G1"], "multiplicity": "counts"}
    config = DataConfig(**given, genes=8, regress_out=["ribosomal", "cell_cycle"])
    loaded, _ = load_cells(config, 0, cells)
    counts = np.asarray(cells.X)
    wanted = np.stack([score(counts[:, part]) for part in ([*range(6)], [6, 7], [8, 9])], 1)
    np.testing.assert_allclose(loaded.programmes, wanted, atol=1e-5)
    plain = config.model_copy(update={"regress_out": []})
    assert load_cells(plain, 0, cells)[0].programmes is None


def test_what_is_regressed_out_is_a_part_of_what_a_run_is_known_by():
    digests = {
        load_cells(DataConfig(path="memory", regress_out=out), 0, named_cells())[0].digest
        for out in ([], ["ribosomal"], ["cell_cycle"])
    }
    assert len(digests) == 3


def test_a_programme_without_genes_is_refused():
    config = DataConfig(path="memory", regress_out=["haemoglobin"])
    with pytest.raises(DataError) as raised:
        load_cells(config, 0, named_cells())
    assert raised.value.field == "data.regress_out"


def test_the_cell_cycle_has_two_parts():
    s, mitosis = parts_of("cell_cycle", ["Mki67", "STAT1", "Pcna"])
    assert (s.tolist(), mitosis.tolist()) == ([2], [0])
