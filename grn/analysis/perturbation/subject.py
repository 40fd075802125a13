"""The cells of a run that a perturbation is asked of, with the run's model and its states of cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from anndata import AnnData

from grn.analysis.perturbation.association import Association
from grn.analysis.perturbation.changes import Mechanism
from grn.cells.cells import Cells
from grn.cells.load import read_columns
from grn.config.files import load_config
from grn.config.schema import Config
from grn.errors import ConfigError, DataError
from grn.io.run_folder import CONFIG, config_of, refuse_cut_off
from grn.model.saved import TrainedModel
from grn.model.signed.regulation import Regulation
from grn.networks.cells_of_run import cells_of_run, states_of_run
from grn.regulation.states import States


@dataclass(frozen=True)
class Subject:
    """adata: the cells in memory, where the run was trained on an AnnData."""

    config: Config
    trained: TrainedModel
    cells: Cells
    states: States
    adata: AnnData | None

    @classmethod
    def of_run(cls, run: Path, adata: AnnData | None = None) -> Subject:
        """Raises RunFolderError, ConfigError, DataError; also where the cells are not those of the run any more."""
        config = load_config(config_of(run, needed=(CONFIG,)))
        refuse_cut_off(run, ("model",))
        trained = TrainedModel.load(run / "model")
        if trained.model.regulation is None:
            raise ConfigError(
                f"The run in {run} has no regulation layer, which perturbations are read from; train with "
                "regulation.members of 1 or more."
            )
        cells = cells_of_run(run, config, trained, adata)
        return cls(config, trained, cells, states_of_run(run, cells, config.trainer.seed, trained), adata)

    @property
    def regulation(self) -> Regulation:
        assert self.trained.model.regulation is not None
        return self.trained.model.regulation

    @cached_property
    def mechanism(self) -> Mechanism:
        sd = self.trained.model.sd
        return Mechanism.of(self.regulation, sd, Association.of(self.regulation, self.cells, self.states, sd))

    @property
    def logarithmic(self) -> bool:
        """Whether multiplicities are log(1 + count)."""
        return self.trained.values == "counts" and self.trained.multiplicity != "counts"

    def rows(self, cell_type: str | None = None, where: Mapping[str, str] | None = None) -> np.ndarray:
        """The cells of a type (or state that was found) for which columns of obs have these values, int64 [C].

        Raises DataError where there are none.
        """
        chosen = np.ones(len(self.cells), dtype=bool)
        if cell_type is not None:
            chosen &= self._of_type(cell_type)
        if where:
            columns = read_columns(self.config.data, self.cells, dict.fromkeys(where, "--where"), self.adata)
            for column, value in where.items():
                values = columns[column].astype(object).map(str).to_numpy()
                if value not in values:
                    known = ", ".join(map(repr, sorted(set(values))[:12]))
                    raise DataError(f"Column {column!r} of obs has no value {value!r}; it has {known}.")
                chosen &= values == value
        if not chosen.any():
            raise DataError("No cell is of this type and has these values; choose fewer of --cell-type and --where.")
        return np.flatnonzero(chosen)

    def _of_type(self, name: str) -> np.ndarray:
        cells, states = self.cells, self.states
        if name in cells.classes:
            return cells.labels == cells.classes.index(name)
        if len(states) > 1 and name in states.names:
            return states.membership.argmax(1) == states.names.index(name)
        known = cells.classes or (states.names if len(states) > 1 else ())
        without = "it has no labels, and no states: train with labels."
        listed = f"its types are {', '.join(map(repr, known))}." if known else without
        raise DataError(f"The run has no cell type {name!r}; {listed}")
