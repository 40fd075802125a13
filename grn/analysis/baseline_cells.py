"""The cells that a network is compared on with Pearson and ridge: of a run, a configuration or a file.

Letters: C cells, N genes.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from grn.config.files import load_config
from grn.config.schema import Config, DataConfig
from grn.errors import DataError, RunFolderError, UserError, one_line
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

    def of_type(self, label: str) -> Expression | None:
        """The cells of one type; None where they are fewer than FEWEST_CELLS."""
        rows = np.flatnonzero(self.labels == label)
        if len(rows) < FEWEST_CELLS:
            return None
        return Expression(self.matrix[rows], self.genes, self.labels[rows])


def cells_of_type(expression: Expression, label: str, say: Say) -> Expression | None:
    """The cells of one type for the baselines; None, with a sentence, where these are too few."""
    cells = expression.of_type(label)
    if cells is None:
        labelled = "" if any(expression.labels) else ", as they have no labels (data.label_key)"
        say(
            f"Pearson and ridge are left out for {label!r}: fewer than {FEWEST_CELLS} of the cells are of that "
            f"type{labelled}."
        )
    return cells


def find_expression(network: Path, data: str | None, say: Say) -> Expression | None:
    """The multiplicities of the cells of --data, or of the run; None where there are none."""
    if data is not None and data.casefold() == "none":
        return None
    if data is not None:
        return expression_named(data)
    if not is_run(network):
        return None
    try:
        return expression_named(str(network))
    except UserError as problem:  # the data may be gone, but the network can be scored without them
        found, _, _ = one_line(problem).partition("; ")  # the advice after it is about fields of a configuration
        say(f"Pearson and ridge are left out: {found}; give the cells with --data to include them.")
        return None


def expression_named(data: str) -> Expression:
    """The cells that `--data` names. Raises DataError where a run is named and its cells are not the same any more."""
    config = data_config(data)
    return expression_of_run(Path(data), config) if is_run(Path(data)) else read_expression(config)


def expression_of_run(run: Path, config: Config) -> Expression:
    """The cells that a run was trained on. Raises DataError where they, or how they are read, have changed.

    Networks of other cells would stand beside the run's own as if all were of the same. A run without a card, or of a
    version that kept no digest, has nothing to compare with.
    """
    from grn.cells.load import load_cells

    cells, _ = load_cells(config.data, config.objectives.property.key, config.trainer.seed)
    with suppress(OSError, ValueError, KeyError, TypeError):
        digest = json.loads((run / "model" / "card.json").read_bytes())["cells"]
        if digest is not None and digest != cells.digest:
            raise DataError(
                f"{config.data.path}, read by the settings in {run / 'config.yaml'}, does not hold the cells that "
                f"{run} was trained on; restore both, or give the cells themselves instead of the run."
            )
    return _expression(cells)


def is_run(network: Path) -> bool:
    return (network / "config.yaml").is_file()


def data_config(data: str) -> Config:
    """The configuration that `--data` names: a run folder's, a file's, or for cells the defaults with all genes."""
    from grn.cells.readers.registry import is_data_file

    path = Path(data)
    if is_run(path):
        return load_config(path / "config.yaml")
    if is_data_file(data):
        return Config(data=DataConfig(path=data, genes="all"))
    if path.is_dir():
        raise RunFolderError(
            f"--data is {path}, a folder with neither config.yaml nor matrix.mtx; give a run folder or cells."
        )
    return load_config(data)


def read_expression(config: Config, adata: AnnData | None = None) -> Expression:
    """The genes and multiplicities on which a run with `config` trains; `adata` replaces the cells of data.path."""
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
    wanted = genes
    genes = expression.genes[expression.genes.isin(wanted)]
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
