"""Networks as tables of edges: of cells, without training a whole model; and of a run, its cell types and its cells."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grn.errors import ConfigError, DataError, RunFolderError, nearest, reworded
from grn.io.run_folder import CONFIG
from grn.verbs.cells import cells_of_caller
from grn.verbs.checked import Positive, Seed, checked
from grn.verbs.run import Run, as_run
from grn.verbs.train import KEYWORDS, changed_fields, random_states_kept, run_settings

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from anndata import AnnData

    from grn.cells.cells import Cells
    from grn.config.schema import Config
    from grn.model.signed.regulation import Regulation
    from grn.regulation.states import States

BY_TYPE = "edges_by_type.parquet"
STEPS = "regulation.steps"  # after the linear start


@checked({"data.path": "source"})
def network(
    source: AnnData | Run | Config | str | os.PathLike[str],
    *,
    cell: str | None = None,
    cell_type: str | None = None,
    data: AnnData | None = None,
    config: Config | str | os.PathLike[str] | None = None,
    label_key: str | None = None,
    group_key: str | None = None,
    state_key: str | None = None,
    regulators: Sequence[str] | str | os.PathLike[str] | None = None,
    genes: Positive | str | os.PathLike[str] | None = None,
    counts: str | None = None,
    seed: Seed | None = None,
    set: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> pd.DataFrame:
    """The network of cells, of one of their types, or of one cell, as a table of edges.

    Of cells, the regulation layers are fitted as `grn.train` fits them before the transformer: no model is trained,
    nothing is scored or written. To take seconds, the members are those of the linear start, unless `config` or `set`
    names `regulation.steps`. Of a run, its network is read from its files.

    The network of one cell holds the effects of its state's network with the norms of the cell itself,
    w_ij(c) = [m_j(c) > 0] u_j sum_heads g_i a_j (q_i + d_iz).k_j / n_i(c), the mean over members: what one usual sd u_j
    of the regulator within states changes of the target's prediction, in this cell, where the regulator is present
    (m_j(c) > 0). Rows are balanced as in other networks. Its mean over a state's cells is close to the state's network;
    what one cell alone says of it is little: there is no confidence.

    Args:
        source: a Run or its folder; or cells: an AnnData or what `data.path` may name; or a configuration.
        cell: the name of a cell (of obs): its own network.
        cell_type: the name of a cell type, or of another state of cells: its network.
        data: the cells in memory, where a run was trained on an AnnData and `cell` is given.
        config: the configuration to start from where `source` are cells; None: the defaults.
        label_key: column of obs with the cell types, which cells are compared within; None: states are found.
        group_key: column of obs (donor, batch) whose cells are held out together.
        state_key: numeric column of obs along which regulation may change.
        regulators: names of the genes that may regulate, a file with one a line, or `all`.
        genes: how many of the most variable genes are used, a file with one a line, or `all`.
        counts: where the counts are: `X`, `raw`, `layer:NAME`, or `recover`.
        seed: of the fit.
        set: any other fields by dotted name, `{"regulation.members": 10}`.
        quiet: print nothing; otherwise what was fitted, in a few lines.

    Returns:
        A row per candidate edge by falling |weight|: `source`, `target`, `weight` (balanced sds of the target per sd of
        the regulator; positive: it raises the target), `within` (what differences between cells of one state say),
        `between` (correlation of the states' levels, -1 to 1), `confidence` (0.5 to 1, that the sign is right) and
        `q_value`. Of one cell: `source`, `target`, `weight`, and only edges that are not 0.

    Raises:
        DataError: cells that cannot be used, no such cell or cell type, a run whose cells can no longer be read.
        ConfigError: an unknown field, a value that it cannot have, or options about cells where a run is given.
        RunFolderError: the run cannot be read.

    Source: arXiv 2505.09326.

    Examples:
        >>> import grn
        >>> tiny = {"data.simulated.cells": 200, "data.simulated.genes": 30, "regulation.steps": 20}
        >>> edges = grn.network("simulated:", label_key="cell_type", set=tiny, quiet=True)
        >>> edges.columns.tolist()
        ['source', 'target', 'weight', 'within', 'between', 'indirect', 'confidence', 'q_value']
        >>> of_type = grn.network("simulated:", label_key="cell_type", cell_type="type 1", set=tiny, quiet=True)
        >>> len(edges) == len(of_type)
        True
    """
    from grn.config.schema import Config

    if cell is not None and cell_type is not None:
        raise ConfigError("Both cell and cell_type are given, and a network is of one of them; leave the other out.")
    keywords = {
        "label_key": label_key,
        "group_key": group_key,
        "state_key": state_key,
        "regulators": regulators,
        "genes": genes,
        "counts": counts,
        "seed": seed,
    }
    changes = changed_fields(keywords, set)
    if isinstance(source, Run) or _is_run_folder(source):
        if changes or config is not None:
            keyword = {field: name for name, field in KEYWORDS.items()}
            given = ", ".join(
                [*(keyword.get(each, each) for each in changes), *(["config"] if config is not None else [])]
            )
            verb, them = ("are", "them") if "," in given else ("is", "it")
            raise ConfigError(
                f"{given} {verb} about cells, and a run has its own configuration; leave {them} out, or give the cells "
                "first."
            )
        return _of_run(as_run(source), cell, cell_type, data)  # type: ignore[arg-type]
    if data is not None:
        raise ConfigError("data= is the cells of a run, but the first argument are cells already; leave data= out.")
    with random_states_kept():
        if config is None and not isinstance(source, Config):
            changes.setdefault(STEPS, 0)
        settings, adata, _ = run_settings(source, config, changes)
        return _of_cells(settings, adata, cell, cell_type, quiet)


def _is_run_folder(source: object) -> bool:
    if not isinstance(source, (str, os.PathLike)):
        return False
    folder = Path(source)
    return (folder / CONFIG).is_file() or (folder / "card.json").is_file()


def _of_run(run: Run, cell: str | None, cell_type: str | None, adata: AnnData | None) -> pd.DataFrame:
    if cell is not None:
        return _of_run_cell(run, cell, adata)
    if adata is not None:
        raise ConfigError("data= is read for the network of one cell alone; give cell=, too, or leave data= out.")
    if cell_type is None:
        return run.edges
    from grn.io.tables import read_edge_table

    path = run._file(BY_TYPE)
    if not path.is_file():
        raise RunFolderError(f"{run.folder} has no {BY_TYPE}; restore it, or train again.")
    known = list(read_edge_table(path, columns=["cell_type"])["cell_type"].unique())
    if cell_type not in known:
        _refuse_unknown("cell_type", cell_type, known)
    found = read_edge_table(path, filters=[("cell_type", "==", cell_type)])
    return found.drop(columns="cell_type").reset_index(drop=True)


def _of_run_cell(run: Run, cell: str, adata: AnnData | None) -> pd.DataFrame:
    from grn.networks.cells_of_run import cells_of_run, states_of_run

    adata = cells_of_caller(adata)
    settings, trained = run.config, run._trained
    regulation = trained.model.regulation
    if regulation is None:
        raise DataError(
            "This run has no regulation layer (regulation.members: 0), so single cells have no networks; train with it."
        )
    advice = "write it with adata.write_h5ad(FILE) and set data.path to FILE in config.yaml"
    with reworded({advice: "give it again as data="}):
        cells = cells_of_run(run.folder, settings, trained, adata)
    return _of_cell(regulation, cells, states_of_run(run.folder, cells, settings.trainer.seed, trained), cell)


def _of_cells(
    settings: Config, adata: AnnData | None, cell: str | None, cell_type: str | None, quiet: bool
) -> pd.DataFrame:
    """The network of cells whose regulation layers are fitted here, on all of them."""
    import numpy as np

    from grn.cells.load import load_cells
    from grn.cells.preprocessing.moments import mean_and_sd
    from grn.messages import silent
    from grn.networks.build import edges_of_regulation, fit_layers
    from grn.networks.prior import prior_of
    from grn.regulation.states import states_of

    if settings.network.readout != "effect":
        raise ConfigError(
            f"grn.network reads effects, and network.readout is {settings.network.readout}; set it to effect, or use "
            "grn.train."
        )
    say = silent if quiet else print
    seed = settings.trainer.seed
    cells, _ = load_cells(settings.data, settings.objectives.property.key, seed, adata)
    states = states_of(cells, seed)
    # What cannot be found is refused before the fit.
    if cell is not None:
        _position(cells, cell)
    if cell_type is not None and (len(states) == 1 or cell_type not in states.names):
        _refuse_unknown("cell_type", cell_type, list(states.names) if len(states) > 1 else [])
    if settings.network.prior is not None:
        prior_of(settings.network, cells)
    for line in (cells.counts_from, *cells.notes, states.summary()):
        say(line)
    mean, sd = mean_and_sd(cells.multiplicity)
    units = {"mean": mean, "sd": sd, "say": say}
    fitted = fit_layers(settings, cells, states, np.arange(len(cells)), **units)
    if cell is not None:
        return _of_cell(fitted.regulation, cells, states, cell)
    edges, by_type = edges_of_regulation(settings, fitted, cells, states, **units)
    if cell_type is None:
        return edges
    return by_type[by_type["cell_type"] == cell_type].drop(columns="cell_type").reset_index(drop=True)


def _of_cell(regulation: Regulation, cells: Cells, states: States, cell: str) -> pd.DataFrame:
    """The edges of one cell's own network."""
    import numpy as np
    import pandas as pd
    import torch

    from grn.networks.readouts.cell_effect import cell_effects

    position = _position(cells, cell)
    regulators = regulation.regulators.cpu().numpy()
    measured = torch.as_tensor(cells.multiplicity[:, regulators].toarray())
    weight = cell_effects(
        regulation, measured, torch.as_tensor(cells.basal), torch.as_tensor(states.membership), position
    )
    target, column = weight.nonzero()
    values = weight[target, column]
    order = np.argsort(-np.abs(values), kind="stable")
    names = np.asarray(cells.vocabulary, dtype=object)
    return pd.DataFrame(
        {
            "source": names[regulators[column[order]]],
            "target": names[target[order]],
            "weight": values[order],
        }
    )


def _position(cells: Cells, cell: str) -> int:
    """Where a cell of this name is. Raises DataError."""
    found: np.ndarray = (cells.obs_names == cell).nonzero()[0]
    if not len(found):
        near = nearest(cell, cells.obs_names[:5000])
        hint = f"did you mean {near!r}?" if near else f"names are like {str(cells.obs_names[0])!r}."
        raise DataError(f"There is no cell {cell!r} among the {len(cells)} cells; {hint}")
    return int(found[0])


def _refuse_unknown(option: str, name: str, known: list[str]) -> None:
    if not known:
        raise DataError(
            f"{option} is {name!r}, but these cells have one network together: they have no labels, and no states were "
            "found; leave it out, or give label_key=."
        )
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"it has {', '.join(map(repr, known))}."
    raise DataError(f"The network has no cell type {name!r}; {hint}")
