"""Our network, Pearson, ridge and networks of other tools on one's own cells, against one's own reference."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grn.errors import DataError
from grn.io.run_folder import CONFIG
from grn.messages import kept_in, silent
from grn.verbs.checked import Seed, checked
from grn.verbs.evaluate import expression_of, reference_of
from grn.verbs.given_cells import is_anndata
from grn.verbs.network import network
from grn.verbs.read_network import predicted_network
from grn.verbs.run import Run, load

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

    from grn.config.schema import Config

COLUMNS = ["auprc", "auprc_ratio", "auroc", "early_precision_ratio", "sign_accuracy", "sign_balanced_accuracy"]


@checked({"data.label_key": "label"})
def benchmark(
    cells: AnnData | Run | Config | str | os.PathLike[str],
    reference: pd.DataFrame | str | os.PathLike[str],
    *,
    networks: Mapping[str, pd.DataFrame | Run | str | os.PathLike[str]] | None = None,
    regulators: Sequence[str] | str | os.PathLike[str] = "reference",
    label: str | None = None,
    seed: Seed = 0,
    quiet: bool = False,
) -> pd.DataFrame:
    """Infers networks of cells by grn, Pearson and ridge, and scores them and others against the same known edges.

    Args:
        cells: an AnnData or a path (counts in X, all genes), a configuration, or a Run, whose network is scored and
            whose cells are read again.
        reference: the true edges, as for `grn.evaluate`.
        networks: further networks by name: tables or paths that `read_network` reads.
        regulators: whose edges are judged: `reference`, `all`, names or a file, as for `grn.evaluate`.
        label: column of obs with the cell types, for grn alone; a Run has its own.
        seed: of grn's training.
        quiet: print nothing; otherwise what is scored, in a few lines.

    Returns:
        A row for each method, by falling AUPRC: auprc, auprc_ratio (over the density of true edges, which chance
        reaches), auroc, early_precision_ratio, sign_accuracy, sign_balanced_accuracy (NaN where signs are not known, or
        have no meaning). `attrs["notes"]` has the printed lines.

    Raises:
        DataError: cells, a reference or a network that cannot be used, no true edge between genes of the cells.
        ConfigError: a configuration that cannot be used.

    Source: Pratapa et al. 2020 (BEELINE), by whose rules networks are scored.

    Examples:
        >>> import pandas, grn
        >>> tiny = {"data.simulated.cell_types": 2, "data.simulated.genes": 20, "model.members": 2}
        >>> run = grn.train("simulated:", label="cell_type", max_steps=20, set=tiny, quiet=True)
        >>> truth = pandas.DataFrame({"source": ["R1", "R2"], "target": ["R3", "R4"], "sign": [1, -1]})
        >>> sorted(grn.benchmark(run, truth, quiet=True).index)
        ['Pearson', 'grn', 'ridge']
    """
    import pandas as pd

    from grn.analysis.comparison import chosen_regulators, compare_networks
    from grn.analysis.universe import make_universe

    notes: list[str] = []
    if isinstance(cells, (str, os.PathLike)) and (Path(cells) / CONFIG).is_file():
        cells = load(cells)
    truth, expression = reference_of(reference), expression_of(cells, cells)
    judged = make_universe(truth.edges, chosen_regulators(regulators), expression.genes).regulators
    if isinstance(cells, Run):
        ours = predicted_network(cells)
    else:
        known = [str(name) for name in judged if name in expression.genes]
        options: dict[str, Any] = {"label": label, "regulators": known, "seed": seed, "quiet": True}
        options |= {"genes": "all"} if is_anndata(cells) or isinstance(cells, (str, os.PathLike)) else {}
        ours = predicted_network(network(cells, set={"network.top_k": None}, **options))  # every pair has a score
    how: dict[str, Any] = {"regulators": regulators, "cell_type": None, "permutations": 0, "seed": 0}
    found = compare_networks(ours, truth, expression, genes="data", say=kept_in(notes, quiet), **how).evaluations
    found = {"grn": found.pop("network"), **found}
    for name, other in (networks or {}).items():
        if name in found:
            raise DataError(f"{{field}} has {name!r}, a method of its own here; rename it", field="networks")
        options = how | {"genes": list(expression.genes), "say": silent}
        found[name] = compare_networks(predicted_network(other), truth, None, **options).evaluations["network"]
    table = pd.DataFrame({name: evaluation.scores for name, evaluation in found.items()}).T.rename_axis("method")
    table = table[COLUMNS].sort_values("auprc", ascending=False, kind="stable")
    table.attrs["notes"] = notes
    return table
