"""Our network, simple methods and networks of other tools on one's own cells, against one's own reference."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grn.errors import DataError
from grn.io.run_folder import CONFIG
from grn.messages import kept_in
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

COLUMNS = ("auprc", "auprc_ratio", "auroc", "early_precision_ratio", "sign_accuracy", "sign_balanced_accuracy")
OURS = "grn"


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
    """Infers networks of cells by several methods and scores all of them against the same known edges.

    The methods are `grn` (`grn.network`, or the network of the run where `cells` are a Run), Pearson and Spearman
    correlation and ridge regression, each with the regulators that are judged; and `networks` of other tools.

    Args:
        cells: an AnnData or a path (counts in X, all genes), a configuration, or a Run, whose cells are read again.
        reference: the true edges, as for `grn.evaluate`.
        networks: further networks by name: tables or paths that `read_network` reads.
        regulators: whose edges are judged: `reference`, `all`, names or a file, as for `grn.evaluate`.
        label: column of obs with the cell types, for grn alone; a Run has its own.
        seed: of grn's training.
        quiet: print nothing; otherwise what is scored, in a few lines.

    Returns:
        A row for each method, by falling AUPRC: auprc, auprc_ratio (over the density of true edges, which chance
        reaches), auroc, early_precision_ratio, sign_accuracy, sign_balanced_accuracy (NaN where signs are not known, or
        have no meaning), and seconds (NaN for networks that were given). `attrs["notes"]` has the printed lines.

    Raises:
        DataError: cells, a reference or a network that cannot be used, no true edge between genes of the cells.
        ConfigError: a configuration that cannot be used.

    Source: Pratapa et al. 2020 (BEELINE), by whose rules networks are scored.

    Examples:
        >>> import pandas, grn
        >>> tiny = {"data.simulated.genes": 30, "model.members": 2}
        >>> run = grn.train("simulated:", label="cell_type", max_steps=20, set=tiny, quiet=True)
        >>> truth = pandas.DataFrame({"source": ["R1", "R2"], "target": ["R3", "R4"], "sign": [1, -1]})
        >>> sorted(grn.benchmark(run, truth, quiet=True).index)
        ['grn', 'pearson', 'ridge', 'spearman']
    """
    import numpy as np
    import pandas as pd

    from grn.analysis.comparison import CAUTION, chosen_regulators
    from grn.analysis.evaluate import check_names, checked_edges, evaluate_on
    from grn.analysis.universe import make_universe
    from grn.networks.baselines import pearson, ridge, spearman

    notes: list[str] = []
    say = kept_in(notes, quiet)
    given = dict(networks or {})
    if taken := {str(name).casefold() for name in given} & {OURS, "pearson", "spearman", "ridge"}:
        raise DataError(f"{{field}} has {min(taken)!r}, a method of its own here; rename it", field="networks")
    if isinstance(cells, (str, os.PathLike)) and (Path(cells) / CONFIG).is_file():
        cells = load(cells)
    truth = reference_of(reference)
    expression = expression_of(cells, cells)
    universe = make_universe(truth.edges, regulators=chosen_regulators(regulators), genes=expression.genes)
    known = universe.regulators[universe.regulators.isin(expression.genes)]
    say(
        f"{expression.matrix.shape[0]} cells; {len(known)} regulators x {len(universe.genes)} genes, "
        f"{len(universe.edges)} true edges, {universe.left_out} left out, as they name genes that the cells lack; "
        f"chance has the AUPRC {universe.density:.4f}."
    )
    if truth.curated:
        say(CAUTION)
    others = {name: predicted_network(each) for name, each in given.items()}
    for other in others.values():
        check_names(other.edges, universe)
    started = time.monotonic()
    if isinstance(cells, Run):
        ours = cells.edges
    else:
        options: dict[str, Any] = {"label": label, "regulators": [str(name) for name in known], "seed": seed}
        options |= {"set": {"network.top_k": None}}  # every pair has a score
        options |= {"genes": "all"} if is_anndata(cells) or isinstance(cells, (str, os.PathLike)) else {}
        ours = network(cells, quiet=True, **options)
    found: dict[str, tuple[pd.DataFrame, bool, float]] = {OURS: (ours, True, time.monotonic() - started)}
    shared = expression.genes[expression.genes.isin(universe.genes)]
    matrix = np.asarray(expression.matrix[:, expression.genes.get_indexer(shared)].toarray(), dtype=np.float64)
    for name, method in (("pearson", pearson), ("spearman", spearman), ("ridge", ridge)):
        started = time.monotonic()
        found[name] = method(matrix, list(shared), list(known)), True, time.monotonic() - started
    found |= {name: (other.edges, other.signed, float("nan")) for name, other in others.items()}
    rows = {}
    for name, (edges, signed, seconds) in found.items():
        scores = evaluate_on(universe, checked_edges(edges), signed=signed, permutations=0).scores
        rows[name] = {column: scores[column] for column in COLUMNS} | {"seconds": seconds}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")
    table = table.sort_values("auprc", ascending=False, kind="stable")
    table.attrs["notes"] = notes
    return table
