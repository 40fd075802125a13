"""What differs between two conditions of a run's cells: the activity of regulators, and edges."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from grn.features.arguments.checked import Positive, Seed, checked
from grn.features.arguments.given_cells import cells_of_caller
from grn.features.given_networks import known_regulons
from grn.features.run import Run, as_run, trained_of
from grn.runtime.errors import ConfigError, DataError, check_known
from grn.runtime.messages import Say, kept_in

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

    from grn.cells.cells import Cells
    from grn.features.arguments.conditions import Compared

LEAST_TARGETS = 5  # of a regulator whose activity is compared


class Comparison(NamedTuple):
    """The two tables that `grn.compare` returns; activity is None where no regulator has enough
    targets.
    """

    activity: pd.DataFrame | None
    edges: pd.DataFrame


@checked()
def compare(
    run: Run | str | os.PathLike[str],
    by: str,
    *,
    conditions: tuple[str, str] | None = None,
    group: str | None = None,
    cell_type: str | None = None,
    data: AnnData | None = None,
    permutations: Positive = 500,
    seed: Seed = 0,
    quiet: bool = False,
) -> Comparison:
    """Return what differs between two conditions of a run's cells: the activity of regulators, and
    edges.

    An activity sums up all targets of a regulator, and so shows differences that no single edge can
    show. Of the edges, those are compared that are certain in the cell type; where these are fewer
    than 100, the run's 2000 strongest. The slope of the target on the regulator is compared between
    the conditions, with the levels of types, donors and conditions and the shared slopes taken out
    (docs/outputs.md). A difference is one of association, not of cause.

    Args:
        run: a Run, or its folder. Its configuration names the cells, which are read again; the
            model is not used.
        by: the column of obs with the conditions.
        conditions: the two values that are compared, the first one subtracted from the second.
            None: the column's only two, in the order of their names.
        group: the column of obs with the donors (or batches), whose cells are kept together. None:
            the run's `data.group_key`; without donors, each cell counts as independent.
        cell_type: a label: the cells of this type alone. None: all types together, and each type
            that has 20 cells in both conditions.
        data: the cells, where the run was trained on an AnnData in memory.
        permutations: of the conditions, behind the p-values of edges.
        seed: of the permutations.
        quiet: print nothing; otherwise what was compared, in a line for each type.
            `edges.attrs["notes"]` has them too.

    Returns:
        `activity`: a table as that of `grn.activity(compare=)`, by the run's `network.regulons` or
        else its certain edges; None where no regulator has five targets. `edges`: a row for each
        pair that was tested, by rising q_value: `cell_type` (`all`: all types together), `source`,
        `target`, `effect` (the slope in the second condition minus that in the first, in sds of the
        target per sd of the regulator, over all cells compared), its interval of 95 % from `low` to
        `high`, `p_value` and `q_value` (0 to 1; over the pairs of all cell types, and apart from
        them over those of `all`), `weight_<condition>` (the slope in either, same unit),
        `level_source` and `level_target` (change of the mean multiplicity; of its logarithm by
        default).

    Raises:
        RunFolderError: `run` has no model or cannot be read.
        ConfigError: an argument that cannot be used.
        DataError: no such column, no two conditions, too few cells, cells that can no longer be
            read.

    Source: Badia-i-Mompel et al. 2022 (activity); White 1980 (errors); Chung and Romano 2013
        (permutations of studentised statistics); Benjamini and Hochberg 1995.

    Examples:
        >>> import anndata, numpy, grn
        >>> counts = numpy.random.default_rng(0).poisson(2.0, (100, 20)).astype("float32")
        >>> adata = anndata.AnnData(counts, obs={"treated": ["no", "yes"] * 50})
        >>> run = grn.train(adata, max_steps=20, set={"model.members": 2}, quiet=True)
        >>> options = {"data": adata, "permutations": 20, "quiet": True}
        >>> activity, edges = grn.compare(run, by="treated", **options)
        >>> activity is None  # nothing regulates anything in random counts
        True
        >>> edges.columns.tolist()[:7]
        ['cell_type', 'source', 'target', 'effect', 'low', 'high', 'p_value']
    """
    from grn.cells.load import read_columns
    from grn.features.arguments.conditions import compared_cells
    from grn.features.compare.differences import compare_edges
    from grn.features.findings.summary import certain
    from grn.networks.cells_of_run import cells_of_run
    from grn.runtime.tables import read_edge_table

    notes: list[str] = []
    say = kept_in(notes, quiet)
    opened, adata = as_run(run), cells_of_caller(data)
    config = opened.config
    cells = cells_of_run(opened.folder, config, trained_of(opened), adata)
    donors = group or config.data.group_key
    if donors == by:
        raise ConfigError(
            f"{{field}} is {by!r}, as the column of the conditions; name that of the donors.",
            field="group",
        )
    columns = read_columns(
        config.data, cells, {by: "by"} | ({} if donors is None else {donors: "group"}), adata
    )
    donor = None if donors is None else columns[donors]
    if by not in (config.data.state_key, config.data.label_key):
        say(
            f"The run compared cells across {by!r}: genes that it moves together can look as if "
            f"they regulated each other. data.state_key: {by} in training keeps its conditions "
            "apart."
        )
    compared = compared_cells(cells, columns[by], donor, conditions=conditions, say=say)
    if cell_type is not None:
        check_known(cell_type, set(compared.types), "The comparison", "cell type", "cell_type")
        compared = compared.of_type(cell_type)
    known = config.network.regulons
    activity = _activity(
        cells, compared, certain(opened.edges) if known is None else known_regulons(known), say
    )
    by_type = read_edge_table(opened.folder / "edges_by_type.parquet")
    edges = compare_edges(
        cells, compared, opened.edges, by_type, permutations=permutations, seed=seed, say=say
    )
    edges.attrs["notes"] = notes
    return Comparison(activity, edges)


def _activity(
    cells: Cells, compared: Compared, regulons: pd.DataFrame, say: Say
) -> pd.DataFrame | None:
    """The activity of regulators in each cell type, between the conditions; None where it cannot be
    told.
    """
    import numpy as np
    import pandas as pd

    from grn.features.activity.of_cells import activity_between, activity_of_cells

    if not (regulons["source"].value_counts() >= LEAST_TARGETS).any():
        say(
            f"No regulator has {LEAST_TARGETS} certain edges, so that edges alone are compared; "
            "network.regulons: collectri compares the activity of known regulators."
        )
        return None
    try:
        values = cells.multiplicity[compared.rows]
        scores, targets = activity_of_cells(
            [values], pd.Index(cells.vocabulary), regulons, LEAST_TARGETS
        )
        donors = None if compared.donors is None else compared.donors.astype(str).astype(object)
        condition = np.array(compared.names, object)[(compared.sign > 0).astype(int)]
        table = activity_between(scores, compared.types, donors, condition, compared.names, say)
    except DataError as problem:
        say(f"The activity of regulators is not compared: {problem}")
        return None
    table.insert(2, "targets", targets.loc[table["regulator"]].to_numpy())
    return table
