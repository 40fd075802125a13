"""A finished run as an object, from its folder: configuration, scores, network."""

from __future__ import annotations

import os
import shutil
import weakref
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grn.features.arguments.checked import checked
from grn.features.arguments.given_cells import cells_of_caller
from grn.runtime.atomic import refuse_unwritable, replacing_folder
from grn.runtime.errors import RunFolderError
from grn.runtime.run_folder import COMPLETE, CONFIG, no_such_run, refuse_cut_off, refuse_mixed_parts

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

    from grn.config.schema import Config
    from grn.model.regulation import Model
    from grn.model.saved import TrainedModel

NEEDED = (CONFIG, "metrics.csv", "edges.parquet", "network.h5ad", "model/card.json")
SCORES = {"accuracy": "accuracy", "macro_f1": "macro F1", "auroc": "AUROC", "r2": "R2 of the genes"}


class Run:
    """A run's model and all that was found with it, as `grn.train` returns and `grn.load` opens it.

    What it holds is read from `folder` when it is asked for, and kept.

    Examples:
        >>> import grn
        >>> tiny = {"data.simulated.cell_types": 2, "data.simulated.genes": 20, "model.members": 2}
        >>> run = grn.train("simulated:", label="cell_type", max_steps=20, set=tiny, quiet=True)
        >>> run
        Run of 1500 cells x 20 genes, 20 regulators, 2 cell types
          ...
          folder: temporary, until save(FOLDER) keeps it
        >>> run.cell_types
        ('type 1', 'type 2')
        >>> sorted(run.metrics)
        ['accuracy', 'auroc', 'cell_type_loss', 'error', 'macro_f1', ...]
        >>> run.network.varp["grn"].shape
        (20, 20)
    """

    @checked()
    def __init__(self, folder: str | os.PathLike[str], *, temporary: bool = False) -> None:
        """Open the run or the model in a folder.

        folder: of a run that is complete, or a model folder.
        temporary: the folder is removed with this object.

        Raises RunFolderError where the folder holds neither, or a run that was cut off.
        """
        self._folder = _find(Path(folder)).absolute()  # a program may change its working folder
        self._temporary = (
            weakref.finalize(self, _remove, self._folder, os.getpid()) if temporary else None
        )

    @property
    def folder(self) -> Path:
        """The folder of the run's files, a whole path. Trained without `output`, a run has a
        temporary one until `save`.
        """
        return self._folder

    @cached_property
    def config(self) -> Config:
        """Every field as it was used."""
        from grn.config.files import load_config

        return load_config(self._file(CONFIG))

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Scores of the test cells, as measured: accuracy, macro_f1, auroc, r2, error, ridge_error,
        means_error and the losses.
        """
        test = self.history.filter(regex="^test/").dropna(how="all")
        scores = test.iloc[-1].dropna().to_dict() if len(test) else {}
        return {str(name).removeprefix("test/"): float(value) for name, value in scores.items()}

    @cached_property
    def history(self) -> pd.DataFrame:
        """metrics.csv: `step` and `<stage>/<name>`, a row each time that something was logged; NaN
        where it was not.
        """
        import pandas as pd

        from grn.runtime.tables import table_of_run

        path = self._file("metrics.csv")
        # Python reads its numbers back exactly; pandas does so from 3.1 on, and before it if asked
        # to, which 3.1 deprecates.
        with table_of_run(path):
            written = pd.read_csv(path, dtype=str)
            return pd.DataFrame(
                {
                    name: column.astype(float) if "/" in str(name) else pd.to_numeric(column)
                    for name, column in written.items()
                }
            )

    @cached_property
    def confusion(self) -> pd.DataFrame:
        """Test cells by their true type (rows) and the predicted one (columns); empty without
        labelled test cells.
        """
        import pandas as pd

        from grn.runtime.tables import table_of_run

        path = self._file("confusion.csv")
        if not path.is_file() and "accuracy" not in self.metrics:
            return pd.DataFrame()
        with table_of_run(path):  # read as plain text: a cell type may be called "NA"
            return pd.read_csv(path, index_col=0, keep_default_na=False)

    @cached_property
    def edges(self) -> pd.DataFrame:
        """edges.parquet: source, target, weight, sd, effect, effect_se, q_value, confidence,
        programme, between, indirect, cells.

        A row per candidate edge, the smallest q-values first and then by falling |weight|; no
        q_value and confidence without `network.false_discovery`. `read_network` gives those of them
        that are certain.
        """
        from grn.runtime.tables import read_edge_table

        return read_edge_table(self._file("edges.parquet"))

    @cached_property
    def network(self) -> AnnData:
        """network.h5ad: cell types x genes, with signed weights in varp["grn"] (row = target,
        column = regulator).

        varp["grn_<slug>"] holds those of each cell type, uns["grn"] says which and what the weights
        mean.
        """
        from grn.runtime.h5ad import read_anndata

        return read_anndata(self._file("network.h5ad"))

    @cached_property
    def cell_types(self) -> tuple[str, ...]:
        """The labels that the model tells apart, in the order of its probabilities; none without
        labels.
        """
        from grn.model.folder import read_model_folder

        return read_model_folder(self._model).classes

    @property
    def module(self) -> Model:
        """The torch module of the model, from which everything is read: changed in place,
        `grn.predict(cells, run)`, `read_networks` and all that is asked of this object's model
        answer by it. The run's files stay as they are.
        """
        return self._trained.model

    @checked()
    def read_networks(self, cells: AnnData | None = None) -> AnnData:
        """The network that `module` now has, read as in training: what `network` holds, as long as
        nothing changed it.

        cells: those that the run was trained on, where they were in memory; None: they are read
            again.
        Raises RunFolderError, and DataError or VocabularyMismatch where the cells are others.

        Examples:
            >>> import grn
            >>> tiny = {"data.simulated.cells": 100, "data.simulated.genes": 20, "model.members": 2}
            >>> run = grn.train("simulated:", max_steps=20, set=tiny, quiet=True)
            >>> same = run.read_networks()
            >>> float(abs(same.varp["grn"] - run.network.varp["grn"]).max()) < 1e-6
            True
            >>> # genes read nothing of the regulators any more
            >>> _ = run.module.blocks[1].embedding.query.zero_()
            >>> int((run.read_networks().varp["grn_layer1"] != 0).sum())
            0
        """
        from grn.networks.build import read_again

        self._file(CONFIG)  # a model without its run has no cells
        return read_again(self._there(), self._trained, cells_of_caller(cells))

    @checked()
    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Copy the run to a new folder, which is its folder from then on, whole or not at all, and
        return that.

        Raises RunFolderError where `folder` exists already, lies in the run's own folder or cannot
        be written.

        Examples:
            >>> import grn, tempfile
            >>> tiny = {"data.simulated.cells": 100, "data.simulated.genes": 20, "model.members": 2}
            >>> run = grn.train("simulated:", max_steps=20, set=tiny, quiet=True)
            >>> with tempfile.TemporaryDirectory() as home:
            ...     kept = run.save(f"{home}/first")
            ...     grn.load(kept).edges.equals(run.edges)
            True
        """
        # a folder that `..` leads back out of need not exist
        folder = Path(os.path.normpath(folder)).absolute()
        if os.path.lexists(folder) or self._there().resolve() in folder.resolve().parents:
            problem = f"{folder} already exists, or lies in the folder of the run itself"
            raise RunFolderError(problem, advice="give another {field}", field="folder")
        refuse_unwritable(folder)
        with replacing_folder(folder) as beside:
            shutil.copytree(self._folder, beside, dirs_exist_ok=True)
            if not self._only_model and not (beside / COMPLETE).exists():
                self._write_report(beside, title=folder.name)
        self._folder = folder
        if self._temporary is not None:
            self._temporary()
            self._temporary = None
        return folder

    def _write_report(self, folder: Path, title: str | None = None) -> Path:
        from grn.edges.signed_network import signed_network
        from grn.features.report.write import write_run_report

        network = signed_network(self.network, self._file("network.h5ad"))
        tables = {"history": self.history, "confusion": self.confusion, "edges": self.edges}
        return write_run_report(
            folder, config=self.config, metrics=self.metrics, network=network, title=title, **tables
        )

    def __repr__(self) -> str:
        try:
            return "\n  ".join(self._described())
        except (
            Exception
        ) as problem:  # a printed object never raises, even where its folder was removed
            return f"Run in {self._folder}, which cannot be read ({type(problem).__name__})"

    def _described(self) -> list[str]:
        from grn.features.findings.summary import score_rows

        genes = (self._model / "vocabulary.txt").read_bytes().count(b"\n")
        if self._only_model:
            return [
                f"Model of {genes} genes, {len(self.cell_types)} cell types",
                f"folder: {self._folder}",
            ]
        regulators, cells = _regulators_and_cells(self._folder / "network.h5ad")
        size = f"{cells} cells x {genes} genes" if cells else f"{genes} genes"
        scores = ", ".join(
            f"{name} {value:.3f}" for name, value in score_rows(self.metrics, SCORES)
        )
        where = (
            "temporary, until save(FOLDER) keeps it"
            if self._temporary is not None
            else self._folder
        )
        return [
            f"Run of {size}, {regulators} regulators, {len(self.cell_types)} cell types",
            f"test cells: {scores or 'none were scored'}",
            f"data: {self.config.data.path}",
            f"folder: {where}",
        ]

    @property
    def _only_model(self) -> bool:
        return (self._folder / "card.json").is_file()

    @property
    def _model(self) -> Path:
        return self._there() if self._only_model else self._there() / "model"

    @cached_property
    def _trained(self) -> TrainedModel:
        from grn.model.saved import TrainedModel

        return TrainedModel.load(self._there())

    def _there(self) -> Path:
        """The run's folder.

        Raises RunFolderError where it was removed or moved since the run was opened.
        """
        if not self._folder.is_dir():
            raise RunFolderError(
                f"The run's folder {self._folder} does not exist any more; load it from where it "
                "is."
            )
        return self._folder

    def _file(self, name: str) -> Path:
        self._there()
        if self._only_model:
            raise RunFolderError(
                f"{self._folder} is a model without its run, which has {name}; load that."
            )
        return self._folder / name


@checked()
def load(run: str | os.PathLike[str]) -> Run:
    """Open a run that `grn train` or `grn.train` has left.

    Args:
        run: its folder, or its `model` folder; a model folder without its run has only `cell_types`
            and predictions. Or hf://OWNER/NAME, a model on the Hugging Face Hub that `grn export
            --format huggingface` has written (needs `pip install huggingface_hub`).

    Returns:
        The run; its tables are read when they are asked for.

    Raises:
        RunFolderError: the folder does not exist, holds no run, or holds one that was cut off.

    Examples:
        >>> import grn
        >>> tiny = {"data.simulated.cells": 100, "data.simulated.genes": 20, "model.members": 2}
        >>> trained = grn.train("simulated:", max_steps=20, set=tiny, quiet=True)
        >>> grn.load(trained.folder).edges.columns.tolist()
        ['source', 'target', 'weight', 'sd', 'effect', 'effect_se',
         'q_value', 'confidence', 'programme', 'between', 'indirect', 'cells']
    """
    from grn.features.hub import local_folder

    return Run(local_folder(run))


def as_run(run: Run | str | os.PathLike[str]) -> Run:
    if isinstance(run, Run):
        folder_of(run)
        return run
    return load(run)


def folder_of(run: Run) -> Path:
    """Return the run's folder. Raises RunFolderError where it was removed since the run was
    opened."""
    return run._there()


def trained_of(run: Run) -> TrainedModel:
    """Return the model of a run, read when it is first asked for; `Run.module` is its module."""
    return run._trained


def write_report_of(run: Run) -> Path:
    """Write the report of a run again, and return its path."""
    return run._write_report(run.folder)


def _find(folder: Path) -> Path:
    """The folder of the run, given it or its model folder; a model folder alone as it is."""
    if (folder / "card.json").is_file():
        above = folder.resolve().parent
        return above if folder.resolve().name == "model" and (above / CONFIG).is_file() else folder
    if not (folder / CONFIG).is_file():
        advice = "give the folder of a run."
        lacking = f"{folder} holds no run: it lacks {CONFIG}; {advice}"
        raise RunFolderError(lacking if folder.exists() else no_such_run(folder, advice))
    refuse_cut_off(folder, NEEDED)
    refuse_mixed_parts(folder)
    return folder


def _regulators_and_cells(path: Path) -> tuple[int, int | None]:
    """Return how many genes of a network.h5ad are regulators, and how many cells it is of; its
    matrices are not read.
    """
    import h5py
    from anndata.io import read_elem

    with h5py.File(path) as file:
        var: Any = read_elem(file["var"])
        parameters: Any = read_elem(file["uns/grn/parameters"])
    return int(var["is_regulator"].sum()), parameters.get("cells")


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked process ends without what its parent still has
        shutil.rmtree(folder.parent, ignore_errors=True)
