"""Edges that differ between two conditions: of a run's cells, in each type and in all types together."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path

import numpy as np
import pandas as pd
from anndata import AnnData

from grn.analysis.compare.conditions import ALL, Compared, compared_cells
from grn.analysis.compare.divisions import Divisions
from grn.analysis.compare.one_table import comparable_genes, compare_slopes
from grn.cells.cells import Cells
from grn.cells.load import read_columns
from grn.cells.preprocessing.moments import mean_and_sd
from grn.config.files import load_config
from grn.errors import ConfigError, DataError
from grn.io.run_folder import CONFIG, config_of, refuse_cut_off
from grn.messages import Say
from grn.networks.cells_of_run import cells_of_run

FEWEST = 20  # cells of a type in each condition
LARGEST = 2**27  # cells x genes that one comparison holds
SIGNIFICANT = 0.05


def compare_run(
    run: Path,
    by: str,
    *,
    conditions: Sequence[str] | None = None,
    group: str | None = None,
    cell_type: str | None = None,
    permutations: int = 200,
    seed: int = 0,
    adata: AnnData | None = None,
    say: Say,
) -> pd.DataFrame:
    """`compare_cells` of the cells that a run was trained on. by, group: columns of obs; group None: the run's.

    adata: these cells in memory, for runs that were trained on an AnnData. Raises RunFolderError, ConfigError,
    DataError, VocabularyMismatch; also where the cells are no longer those that the run was trained on.
    """
    from grn.model.saved import TrainedModel

    config = load_config(config_of(run, needed=(CONFIG,)))
    refuse_cut_off(run, ("model",))
    trained = TrainedModel.load(run / "model")
    cells = cells_of_run(run, config, trained, adata)
    options, group = {by: "--by"}, group or config.data.group_key
    if group is not None:
        options.setdefault(group, "--group")
    if group == by:
        raise ConfigError(f"--by and --group are both {by!r}; give --group the column with the donors.")
    columns = read_columns(config.data, cells, options, adata)
    return compare_cells(
        cells,
        columns[by],
        None if group is None else columns[group],
        conditions=conditions,
        cell_type=cell_type,
        permutations=permutations,
        seed=seed,
        say=say,
    )


def compare_cells(
    cells: Cells,
    condition: pd.Series,
    donor: pd.Series | None = None,
    *,
    conditions: Sequence[str] | None = None,
    cell_type: str | None = None,
    permutations: int = 200,
    seed: int = 0,
    say: Say,
) -> pd.DataFrame:
    """One table for all cell types together (cell_type `all`) and one for each type, below each other.

    condition, donor [C]: columns of obs.   conditions: the two values; None: the only two.   cell_type: this type
    alone. Columns: cell_type, source, target, effect, low, high, p_value, q_value, weight_<a>, weight_<b>,
    level_source, level_target; rows in the order of q_value and |effect|. Raises DataError.
    """
    if isinstance(permutations, bool) or not isinstance(permutations, Integral) or not 1 <= permutations <= 10**6:
        raise DataError(
            f"--permutations is {permutations!r}; it is a number from 1 to a million, and 200 are a good one."
        )
    compared = _small_enough(compared_cells(cells, condition, donor, conditions=conditions, say=say), cells, seed, say)
    unit = mean_and_sd(cells.multiplicity[compared.rows])[1].double().numpy()
    tables = []
    for name, part in _parts(cells, compared, cell_type):
        refused = _too_few(part) or _too_few_donors(part)
        genes = None if refused else comparable_genes(cells, part)
        if genes is not None and not len(genes.regulators):
            refused = "no regulator is seen in enough cells of both conditions"
        if refused or genes is None:
            if cell_type is not None or len(compared.type_names) == 1 or name == ALL:
                few_donors = not _too_few(part) and _too_few_donors(part)
                advice = (
                    "give --group a column with more donors" if few_donors else "compare conditions with more cells"
                )
                raise DataError(f"{_title(name)} cannot be compared: {refused}; {advice}.")
            say(f"{_title(name)} is left out: {refused}.")
            continue
        _say_limits(name, part, permutations, say)
        table = compare_slopes(cells, part, genes, unit, permutations, seed)
        table.insert(0, "cell_type", name)
        found = table["q_value"]
        say(
            f"{_title(name)}: {int((part.sign < 0).sum())} and {int((part.sign > 0).sum())} cells, "
            f"{len(genes.regulators)} regulators x {len(genes.targets)} genes, {int((found <= SIGNIFICANT).sum())} "
            f"edges differ at q <= 0.05, {int((found <= 0.1).sum())} at q <= 0.1."
        )
        tables.append(table)
    table = pd.concat(tables, ignore_index=True)
    order = np.lexsort([-table["effect"].abs(), table["q_value"]])
    return table.iloc[order].reset_index(drop=True)


def _parts(cells: Cells, compared: Compared, cell_type: str | None) -> list[tuple[str, Compared]]:
    if cell_type is not None:
        if cell_type not in cells.classes:
            known = ", ".join(map(repr, cells.classes)) or "none: set data.label_key where you train"
            raise DataError(f"The cells have no type {cell_type!r}; their types are {known}.")
        if cell_type not in compared.type_names:
            raise DataError(f"Cell type {cell_type!r} lacks cells in one condition or both; choose another type.")
        return [(cell_type, compared.of_type(cell_type))]
    several = len(compared.type_names) > 1
    return [(ALL, compared), *((name, compared.of_type(name)) for name in compared.type_names if several)]


def _title(name: str) -> str:
    return "All cells together" if name == ALL else f"Cell type {name!r}"


def _too_few(part: Compared) -> str | None:
    """Why there are too few cells."""
    sizes = [int((part.sign == sign).sum()) for sign in (-1, 1)]
    if min(sizes) >= FEWEST:
        return None
    described = " and ".join(f"{size} in {name!r}" for size, name in zip(sizes, part.names, strict=True))
    return f"it has {described} of the {FEWEST} cells that each condition needs"


def _too_few_donors(part: Compared) -> str | None:
    if part.donors is None or Divisions(part.sign, part.types, part.donors).number > 1:
        return None
    return f"its {len(np.unique(part.donors))} donors can be divided into the conditions in one way only"


def _say_limits(name: str, part: Compared, permutations: int, say: Say) -> None:
    """How small a q-value can be, where that is not small."""
    number = Divisions(part.sign, part.types, part.donors).number
    least = 1 / min(number, permutations + 1)
    if least <= SIGNIFICANT:
        return
    if part.donors is not None and number <= permutations:
        say(
            f"{_title(name)}: its {len(np.unique(part.donors))} donors can be divided into the conditions in "
            f"{number:g} ways only, so that no q-value is below {least:.2g}; more donors are needed for 0.05."
        )
    else:
        say(f"With {permutations} permutations, no q-value is below {least:.2g}; --permutations 200 are enough.")


def _small_enough(compared: Compared, cells: Cells, seed: int, say: Say) -> Compared:
    """All of the cells, or as many random ones as fit into memory."""
    most = LARGEST // len(cells.vocabulary)
    if len(compared.rows) <= most:
        return compared
    say(f"{most} of {len(compared.rows)} cells are compared, drawn at random: more would take too much memory.")
    return compared.taken(np.sort(np.random.default_rng(seed).permutation(len(compared.rows))[:most]))
