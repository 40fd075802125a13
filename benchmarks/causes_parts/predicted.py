"""What grn and simple methods expect of an intervention: changes of mean log multiplicities, [N].

Letters: C cells, N genes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from causes_parts.fitted import Fitted
from causes_parts.networks_of import Embeddings, correlations, measured_changes, papalexi
from interventions import Screen
from peers_by_type import ridge_within

from grn.cells.load import load_cells
from grn.cells.readers.registry import MEMORY
from grn.config.files import change_config
from grn.evidence.caused import caused_effects
from grn.evidence.states import states_of
from grn.features.perturb.unmade import Unmade, at_one_total
from grn.networks.baselines import pearson

GRN = "grn"


def seen(
    screen: Screen, training: np.ndarray, names: list[str], fitted: Fitted | None
) -> dict[str, dict[str, np.ndarray]]:
    """Return method -> intervention -> change, of interventions that training cells have, too."""
    changes = measured_changes(screen, training)
    found = {
        "mean change": {name: changes[name] for name in names},
        "mean of all": dict.fromkeys(names, np.mean(list(changes.values()), axis=0)),
    }
    if fitted is not None:
        found[GRN] = {name: fitted.change(name, screen.genes) for name in names}
    return found


def unseen(
    screen: Screen, training: np.ndarray, name: str, boosted: pd.DataFrame, seed: int, grn: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what methods expect of the loss of the gene `name` from training cells without it.

    boosted: GRNBoost2's network, which is learned from these cells, too, as its trees take long.
    """
    training = training & (screen.target != name)
    changes = measured_changes(screen, training)
    values = screen.values[training]
    known = [each for each in changes if each in screen.genes]
    yield "mean of all", np.mean(list(changes.values()), axis=0)
    yield "linear, embeddings", Embeddings.of(values, screen.genes, changes).change(name)
    given = values, screen.genes, [*known, name]
    within = ridge_within(values, list(screen.replicate[training]), *given[1:])
    networks = {"Pearson": pearson(*given), "ridge within types": within, "GRNBoost2": boosted}
    sd = values.std(0)
    for method, network in networks.items():
        directions = {each: -sd * weights(network, each, screen.genes) for each in (*known, name)}
        yield method, size_of(directions, changes) * directions[name]
    if grn:
        yield GRN, never_made(screen, training, name, seed)


def weights(network: pd.DataFrame, source: str, genes: list[str]) -> np.ndarray:
    """Return the weights of a regulator's edges, [N]; 0 where there are none."""
    of_source = network[network["source"] == source].set_index("target")["weight"]
    return of_source.reindex(genes).fillna(0).to_numpy(float)


def size_of(directions: dict[str, np.ndarray], changes: dict[str, np.ndarray]) -> float:
    """Return the factor, not negative, by which directions come nearest to the changes of the
    interventions that were made: weights of a network say nothing of their size.
    """
    made = [name for name in directions if name in changes]
    ours, theirs = (np.concatenate([each[name] for name in made]) for each in (directions, changes))
    return max(float(ours @ theirs / max(ours @ ours, 1e-12)), 0.0)


def never_made(screen: Screen, training: np.ndarray, name: str, seed: int) -> np.ndarray:
    """Return what grn learns of it from the interventions that were made; needs no training."""
    fields = {"path": MEMORY, "genes": "all", "intervention_key": "target", "guide_key": "guide"}
    fields |= {"group_key": "replicate"}
    config = change_config(None, {f"data.{field}": each for field, each in fields.items()})
    cells, _ = load_cells(config.data, seed=seed, adata=screen.adata[training].copy())
    states = states_of(cells, seed)
    caused = caused_effects(cells, states)
    learned = Unmade(at_one_total(cells), states.membership, cells.interventions, caused)
    effect = learned.effect(cells.vocabulary.index(name)) * caused.sd
    return effect[[cells.vocabulary.index(gene) for gene in screen.genes]]


def boosted_network(screen: Screen, training: np.ndarray, cache: Path) -> pd.DataFrame:
    return dict(correlations(papalexi(screen, training), cache))["GRNBoost2"]
