"""A network against known edges, from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Interval

from grn.errors import DataError, reworded
from grn.verbs.cells import checked_anndata, is_anndata
from grn.verbs.checked import Seed, checked
from grn.verbs.read_network import predicted_network
from grn.verbs.run import Run

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

    from grn.analysis.baseline_cells import Expression
    from grn.analysis.evaluation.reference_files import ReferenceNetwork
    from grn.config.schema import Config

MOST_PERMUTATIONS = 10**6
WORDS = {
    "set data.path to a file or to": "give data= a file or",
    "set data.orientation to": "give data= a configuration with data.orientation:",
    "--data is": "data= is",
    "--genes": "genes=",
    "--regulators": "regulators=",
    "--data": "data=",
    "--cell-type": "cell_type=",
    "--key": "key=",
    " or a file with one gene a line": ", names in a list or a file with one gene a line",
}
"""What messages say of options -> what they say to a caller of `evaluate`."""
RECOVERED = "recover (computes the integers from its log1p values)"
IN_X = {
    f" or {RECOVERED}": "",
    f"set data.counts: {RECOVERED}": (
        "give an AnnData with the counts in X, or a configuration with data.counts: recover"
    ),
    "set data.counts: ": "give an AnnData with the counts in X, which here are in: ",
}
"""The same for cells in memory, whose counts are taken from X."""


@checked()
def evaluate(
    network: pd.DataFrame | Run | AnnData | str | os.PathLike[str],
    reference: pd.DataFrame | str | os.PathLike[str],
    *,
    regulators: Sequence[str] | str | os.PathLike[str] = "reference",
    genes: Sequence[str] | str | os.PathLike[str] | None = None,
    data: AnnData | Run | Config | str | os.PathLike[str] | None = None,
    cell_type: str | None = None,
    key: str = "grn",
    permutations: Annotated[int, Interval(ge=0, le=MOST_PERMUTATIONS)] = 1000,
    seed: Seed = 0,
    quiet: bool = False,
) -> pd.DataFrame:
    """Scores a network against known edges, by the rules of BEELINE, beside Pearson correlation and ridge regression.

    Candidates are the pairs of a regulator of the reference and another of its genes. A pair without a weight has
    weight 0; self loops do not count; of a pair listed twice the largest |weight| does.

    Args:
        network: a table (source, target, weight; or TF, target, importance; ...), a Run, its AnnData, or a path to what
            `read_network` reads.
        reference: the true edges: a table or a path to one, of BEELINE (Gene1, Gene2, Type), TRRUST, decoupler (source,
            target, weight or mor, of which the sign counts) or of simulated cells (source, target, sign). With a column
            cell_type, the networks of these types are scored, too: see Returns.
        regulators: whose edges are judged: `reference`: genes with an edge in it; `all`: all of its genes; names; or a
            file with one a line.
        genes: genes that count: `reference`: all of it, `network`, `data`, names, or a file. None: those of `data`, or
            of a run, where there is one; else `reference`.
        data: cells for the columns pearson and ridge: an AnnData (read as the run's cells were, where `network` is a
            Run; else with counts in X), a path to cells (counts in X), a Run, whose cells are read again, or a
            configuration. None: no such columns.
        cell_type: a label: the network of this type is scored in place of that over all cells, against the edges of
            this type where `reference` has a column cell_type.
        key: of varp: which network of a run or of a network.h5ad is scored, as `grn_attention_layer1`.
        permutations: of the weights, behind the p-values; 0: none.
        seed: of the permutations.
        quiet: print nothing; otherwise what the scores rest on, in a few lines. `attrs["notes"]` has them too.

    Returns:
        A row per score (early_precision, auprc, auroc, sign_accuracy, ...: numbers from 0 to 1, ratios from 0), with
        the columns network, p (one-sided, against permuted weights), and pearson and ridge where there are data. NaN
        where a score is not defined, as those of signs for networks without signs. Where the reference has cell types,
        `pandas.DataFrame(table.attrs["cell_types"])` has the scores of each type's network: a row for each type and
        method, and the mean over the types.

    Raises:
        DataError: files or tables that cannot be read, no gene shared, no true edge left.
        ConfigError: `data` names a configuration that cannot be used, or a number is none.

    Source: Pratapa et al. 2020 (BEELINE).

    Examples:
        >>> import grn, pandas
        >>> network = pandas.DataFrame({"source": ["A", "A", "B"], "target": ["B", "C", "C"], "weight": [3, -2, 1]})
        >>> truth = pandas.DataFrame({"Gene1": ["A", "A"], "Gene2": ["B", "C"], "Type": ["+", "-"]})
        >>> scores = grn.evaluate(network, truth, permutations=100, quiet=True)
        >>> scores.loc[["early_precision", "sign_accuracy"], "network"].tolist()
        [1.0, 1.0]
    """
    from grn.analysis.evaluation.comparison import (
        compare_networks,
        compare_types,
        default_genes,
        refuse_type_of_key,
        score_table,
    )

    notes: list[str] = []

    def say(line: str) -> None:
        line = _in_words(line)
        notes.append(line)
        if not quiet:
            print(line, flush=True)

    with reworded(WORDS):
        refuse_type_of_key(cell_type, key)
        predicted, truth = predicted_network(network, key), reference_of(reference)
        expression = None if data is None else expression_of(data, network)
        evaluations = compare_networks(
            predicted,
            truth,
            expression,
            regulators=regulators,
            genes=default_genes(predicted, expression) if genes is None else genes,
            cell_type=cell_type,
            permutations=permutations,
            seed=seed,
            say=say,
        )
        universe = evaluations["network"].universe
        types = compare_types(predicted, truth, expression, universe, say) if cell_type is None else None
    table = score_table(evaluations).set_index("score").rename(columns=str.lower)
    table.attrs["notes"] = notes
    if types is not None:
        table.attrs["cell_types"] = types.to_dict("records")  # pandas compares attributes, and cannot compare tables
    return table


def reference_of(reference: pd.DataFrame | str | os.PathLike[str]) -> ReferenceNetwork:
    import pandas as pd

    from grn.analysis.evaluation.reference_files import open_reference_file, reference_of_table

    if isinstance(reference, pd.DataFrame):
        return reference_of_table(reference, "The reference")
    if isinstance(reference, (str, os.PathLike)):
        return open_reference_file(Path(reference))
    raise DataError(f"reference must be a table or a path to one, not {type(reference).__name__}.")


def expression_of(data: AnnData | Run | Config | str | os.PathLike[str], network: object) -> Expression:
    """The cells behind `data`; an AnnData is read as the network's own run read its cells, where it is of a run."""
    from grn.analysis.baseline_cells import expression_named, expression_of_run, read_expression
    from grn.cells.readers.registry import MEMORY
    from grn.config.files import change_config
    from grn.config.schema import Config

    if isinstance(data, Config):
        return read_expression(data)
    if isinstance(data, Run):
        return expression_of_run(data.folder, data.config)
    if is_anndata(data):
        changes = {"data.path": MEMORY, "data.orientation": None, "data.backed": False}
        if not isinstance(network, Run):
            changes["data.genes"] = "all"
        base = network.config if isinstance(network, Run) else None
        with reworded(IN_X):
            return read_expression(change_config(base, changes), checked_anndata(data))
    if isinstance(data, (str, os.PathLike)):
        return expression_named(os.fspath(data))
    raise DataError(f"data must be an AnnData, a Run, a configuration or a path, not {type(data).__name__}.")


def _in_words(line: str) -> str:
    for option, keyword in WORDS.items():
        line = line.replace(option, keyword)
    return line
