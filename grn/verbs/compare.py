"""Edges that differ between two conditions of a run's cells."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from grn.errors import ConfigError
from grn.messages import kept_in
from grn.verbs.checked import Positive, Seed, checked
from grn.verbs.given_cells import cells_of_caller
from grn.verbs.run import Run, as_run

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData


@checked()
def compare(
    run: Run | str | os.PathLike[str],
    by: str,
    *,
    conditions: tuple[str, str] | None = None,
    group: str | None = None,
    cell_type: str | None = None,
    data: AnnData | None = None,
    permutations: Positive = 200,
    seed: Seed = 0,
    quiet: bool = False,
) -> pd.DataFrame:
    """Edges that differ between two conditions of a run's cells, in each cell type and in all types together.

    The slope of each target on each regulator is compared between the conditions, with the levels of types, donors and
    conditions and the shared slopes taken out (docs/outputs.md). A difference is one of association, not of cause.

    Args:
        run: a Run, or its folder. Its configuration names the cells, which are read again; the model is not used.
        by: the column of obs with the conditions.
        conditions: the two values that are compared, the first one subtracted from the second. None: the column's only
            two, in the order of their names.
        group: the column of obs with the donors (or batches), whose cells are kept together. None: the run's
            `data.group_key`; without donors, each cell counts as independent.
        cell_type: a label: the cells of this type alone. None: all types together, and each type that has 20 cells in
            both conditions.
        data: the cells, where the run was trained on an AnnData in memory.
        permutations: of the conditions, behind the p-values.
        seed: of the permutations.
        quiet: print nothing; otherwise what was compared, in a line for each type. `attrs["notes"]` has them too.

    Returns:
        A row for each regulator and other gene that were compared, by rising q_value: `cell_type` (`all`: all types
        together), `source`, `target`, `effect` (the slope in the second condition minus that in the first, in sds of
        the target per sd of the regulator, over all cells compared), its interval of 95 % from `low` to `high`,
        `p_value` and `q_value` (0 to 1; within the cell type), `weight_<condition>` (the slope in either, same unit),
        `level_source` and `level_target` (change of the mean multiplicity; of its logarithm by default).

    Raises:
        RunFolderError: `run` has no model or cannot be read.
        ConfigError: an argument that cannot be used.
        DataError: no such column, no two conditions, too few cells or donors, cells that can no longer be read.

    Source: White 1980 (errors); Chung and Romano 2013 (permutations of studentised statistics); Benjamini and Hochberg
    1995.

    Examples:
        >>> import anndata, numpy, grn
        >>> counts = numpy.random.default_rng(0).poisson(2.0, (100, 20)).astype("float32")
        >>> adata = anndata.AnnData(counts, obs={"treated": ["no", "yes"] * 50})
        >>> run = grn.train(adata, max_steps=20, set={"model.members": 2}, quiet=True)
        >>> edges = grn.compare(run, by="treated", data=adata, permutations=20, quiet=True)
        >>> edges.columns.tolist()[:7]
        ['cell_type', 'source', 'target', 'effect', 'low', 'high', 'p_value']
    """
    from grn.analysis.differences import compare_cells
    from grn.cells.load import read_columns
    from grn.networks.cells_of_run import cells_of_run

    notes: list[str] = []
    say = kept_in(notes, quiet)
    opened, adata = as_run(run), cells_of_caller(data)
    config = opened.config
    cells = cells_of_run(opened.folder, config, opened._trained, adata)
    donors = group or config.data.group_key
    if donors == by:
        raise ConfigError(
            f"{{field}} is {by!r}, as the column of the conditions; name that of the donors.", field="group"
        )
    columns = read_columns(config.data, cells, {by: "by"} | ({} if donors is None else {donors: "group"}), adata)
    table = compare_cells(
        cells,
        columns[by],
        None if donors is None else columns[donors],
        conditions=conditions,
        cell_type=cell_type,
        permutations=permutations,
        seed=seed,
        say=say,
    )
    table.attrs["notes"] = notes
    return table
