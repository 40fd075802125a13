"""The cells that a network is compared on with Pearson and ridge: of a run, a configuration or a file.

Letters: C cells, N genes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from grn.config.files import load_config
from grn.config.schema import Config, DataConfig
from grn.io.run_folder import CONFIG
from grn.messages import Say
from grn.networks.baselines import pearson, ridge

if TYPE_CHECKING:
    from anndata import AnnData

    from grn.cells.cells import Cells

BASELINES = {"Pearson": pearson, "ridge": ridge}
FEWEST_CELLS = 3  # of which ridge can leave one out


@dataclass(frozen=True)
class Expression:
    """matrix: CSR [C, N], multiplicities.   genes [N].   labels [C]: cell types, None where missing."""

    matrix: Any
    genes: pd.Index
    labels: np.ndarray


def cells_of_type(expression: Expression, label: str, say: Say) -> Expression | None:
    """The cells of one type for the baselines; None, with a sentence, where these are fewer than FEWEST_CELLS."""
    rows = np.flatnonzero(expression.labels == label)
    if len(rows) >= FEWEST_CELLS:
        return Expression(expression.matrix[rows], expression.genes, expression.labels[rows])
    labelled = "" if any(expression.labels) else ", as they have no labels (data.label_key)"
    say(f"Pearson and ridge are left out for {label!r}: fewer than {FEWEST_CELLS} cells are of that type{labelled}.")
    return None


def expression_named(data: str) -> Expression:
    """The cells of a run folder, a configuration, or of anything that data.path takes (counts in X). UserError."""
    from grn.cells.readers.registry import is_data_file

    path = Path(data)
    if is_run(path):
        return expression_of_run(path, load_config(path / CONFIG))
    return read_expression(Config(data=DataConfig(path=data, genes="all")) if is_data_file(data) else load_config(path))


def expression_of_run(run: Path, config: Config) -> Expression:
    """The cells that a run was trained on. Raises DataError where they, or how they are read, have changed."""
    from grn.model.saved import TrainedModel
    from grn.networks.cells_of_run import cells_of_run

    return _expression(cells_of_run(run, config, TrainedModel.load(run)))


def is_run(network: Path) -> bool:
    return (network / CONFIG).is_file()


def read_expression(config: Config, adata: AnnData | None = None) -> Expression:
    """The cells of a configuration; `adata` replaces those of data.path."""
    from grn.cells.load import load_cells

    cells, _ = load_cells(config.data, seed=config.trainer.seed, adata=adata)
    return _expression(cells)


def _expression(cells: Cells) -> Expression:
    labels = np.array([*cells.classes, None], dtype=object)[cells.labels]  # -1 reads the last entry: missing
    return Expression(cells.multiplicity, pd.Index(cells.vocabulary, dtype=object), labels)


def baseline_networks(
    expression: Expression, regulators: pd.Index, genes: pd.Index, say: Say
) -> dict[str, pd.DataFrame]:
    """Networks by Pearson and ridge from the regulators of a universe to its genes, as far as the data have them."""
    wanted, genes = genes, expression.genes[expression.genes.isin(genes)]
    regulators = regulators[regulators.isin(genes)]
    if not len(regulators) or len(genes) < 2:
        say(
            "Pearson and ridge are left out: the data have none of the universe's regulators; their genes are named "
            f"like {expression.genes[0]!r}, those of the reference like {wanted[0]!r}."
        )
        return {}
    columns = expression.genes.get_indexer(genes)
    matrix = np.asarray(expression.matrix[:, columns].toarray(), dtype=np.float64)
    say(
        f"Pearson and ridge: from the multiplicities of {len(matrix)} cells, {len(regulators)} regulators x "
        f"{len(genes)} genes."
    )
    return {name: method(matrix, genes, regulators) for name, method in BASELINES.items()}
