"""A network against known edges, beside Pearson correlation and ridge regression."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval

from grn.features.arguments.checked import Seed, checked
from grn.features.arguments.given_cells import checked_anndata, is_anndata
from grn.features.given_networks import predicted_network
from grn.features.run import Run
from grn.runtime.errors import DataError, UserError
from grn.runtime.messages import Say, kept_in
from grn.runtime.run_folder import CONFIG

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

    from grn.cells.cells import Cells
    from grn.config.schema import Config
    from grn.edges.edge_table import ReferenceNetwork


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
    permutations: Annotated[int, Interval(ge=0, le=10**6)] = 1000,
    seed: Seed = 0,
    quiet: bool = False,
) -> pd.DataFrame:
    """Score a network against known edges, by the rules of BEELINE, beside Pearson correlation and
    ridge regression.

    Candidates are the pairs of a regulator of the reference and another of its genes. A pair
    without a weight has weight 0; self loops do not count; of a pair listed twice the largest
    |weight| does.

    Args:
        network: anything that `read_network` reads.
        reference: the true edges: a table or a path to one, of BEELINE (Gene1, Gene2, Type),
            TRRUST, decoupler (source, target, weight or mor, of which the sign counts) or of
            simulated cells (source, target, sign). With a column cell_type, the networks of these
            types are scored, too.
        regulators: whose edges are judged: `reference`: genes with an edge in it; `all`: all of its
            genes; names; or a file with one a line.
        genes: genes that count: `reference`: all of it, `network`, `data`, names, or a file. None:
            those of `data`, or of a run, where there is one; else `reference`.
        data: cells for the columns pearson and ridge: an AnnData or a path (counts in X, or as
            `network` read them, where it is a Run), a Run, whose cells are read again, or a
            configuration. None: no such columns.
        cell_type: a label: the network of this type alone, against its edges where `reference` has
            a column cell_type.
        key: of varp: which network of a run or of a network.h5ad is scored, as `grn_layer1` or
            `grn_total`.
        permutations: of the weights, behind the p-values; 0: none.
        seed: of the permutations.
        quiet: print nothing; otherwise what the scores rest on, in a few lines. `attrs["notes"]`
            has them too.

    Returns:
        A row per score (early_precision, auprc, auroc, sign_accuracy, ...: numbers from 0 to 1,
        ratios from 0), with the columns network, p (one-sided, against permuted weights), and
        pearson and ridge where there are data. NaN where a score is not defined, as those of signs
        for networks without signs. Where the reference has cell types,
        `pandas.DataFrame(table.attrs["cell_types"])` has the scores of each type's network: a row
        for each type and method, and the mean over the types.

    Raises:
        DataError: files or tables that cannot be read, no gene shared, no true edge left.
        ConfigError: `data` names a configuration that cannot be used, or an argument is wrong.

    Source: Pratapa et al. 2020 (BEELINE).

    Examples:
        >>> import grn, pandas
        >>> pairs = {"source": ["A", "A", "B"], "target": ["B", "C", "C"]}
        >>> network = pandas.DataFrame(pairs | {"weight": [3, -2, 1]})
        >>> truth = pandas.DataFrame({"Gene1": ["A", "A"], "Gene2": ["B", "C"], "Type": ["+", "-"]})
        >>> scores = grn.evaluate(network, truth, permutations=100, quiet=True)
        >>> scores.loc[["early_precision", "sign_accuracy"], "network"].tolist()
        [1.0, 1.0]
    """
    from grn.edges.edge_table import KEY
    from grn.features.evaluate.comparison import compare_networks, score_table

    notes: list[str] = []
    say = kept_in(notes, quiet)
    cells = None if data is None else cells_behind(data, network)
    if cell_type is not None and key != KEY:
        raise DataError(
            f"A cell type is chosen among the networks of the key {KEY!r}, not of {key!r}; give "
            "one."
        )
    predicted, truth = predicted_network(network, key), reference_of(reference)
    choices: dict[str, Any] = {"regulators": regulators, "genes": genes, "cell_type": cell_type}
    found = compare_networks(
        predicted, truth, cells, **choices, permutations=permutations, seed=seed, say=say
    )
    table = score_table(found.evaluations).set_index("score").rename(columns=str.lower)
    table.attrs["notes"] = notes
    if found.types is not None:
        # pandas compares attributes, but cannot tables
        table.attrs["cell_types"] = found.types.to_dict("records")
    return table


def reference_of(reference: pd.DataFrame | str | os.PathLike[str]) -> ReferenceNetwork:
    from grn.edges.edge_table import open_reference_file, reference_of_table

    if isinstance(reference, (str, os.PathLike)):
        return open_reference_file(Path(reference))
    return reference_of_table(reference, "The reference")


def cells_behind(data: AnnData | Run | Config | str | os.PathLike[str], network: object) -> Cells:
    """Return the cells of a Run or its folder, of a configuration, or of anything that data.path
    takes (counts in X).

    An AnnData is read as the network's own run read its cells, where it is of a run. Raises
    UserError; also where the cells of a run, or how they are read, have changed.
    """
    from grn.cells.load import load_cells
    from grn.cells.readers.registry import MEMORY, is_data_file
    from grn.config.files import change_config, load_config
    from grn.config.schema import Config, DataConfig

    if isinstance(data, Run):
        return _cells_of_run(data.folder, data.config)
    adata = None
    if isinstance(data, (str, os.PathLike)):
        name = os.fspath(data)
        if is_run(Path(name)):
            return _cells_of_run(Path(name), load_config(Path(name) / CONFIG))
        config = (
            Config(data=DataConfig(path=name, genes="all"))
            if is_data_file(name)
            else load_config(name)
        )
    elif is_anndata(data):
        adata, base = checked_anndata(data), network.config if isinstance(network, Run) else None
        changes: dict[str, object] = {"data.path": MEMORY, "data.orientation": None}
        config = change_config(base, changes | ({} if base else {"data.genes": "all"}))
    else:
        config = data
    return load_cells(config.data, seed=config.trainer.seed, adata=adata)[0]


def is_run(network: Path) -> bool:
    return (network / CONFIG).is_file()


def _cells_of_run(run: Path, config: Config) -> Cells:
    from grn.model.saved import TrainedModel
    from grn.networks.cells_of_run import cells_of_run

    return cells_of_run(run, config, TrainedModel.load(run))


def cells_of_network(network: Path, say: Say) -> Cells | None:
    """Return the cells of a run whose network is judged; None, with a sentence, where they are
    gone, and for other networks. The network can be scored without them.
    """
    if not is_run(network):
        return None
    try:
        return cells_behind(network, network)
    except UserError as error:
        found = error.problem.partition("; ")[0].rstrip(".")
        say(f"Pearson and ridge are left out: {found}; give the cells (data) to include them.")
        return None
