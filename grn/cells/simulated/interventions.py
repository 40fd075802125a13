"""Interventions on simulated cells: which cells have which guides, and how much of a regulator's
production the guides leave.

Some regulators are intervened on, each by three guides, of which some may fail. A fifth of the
cells are controls. All draws are from a generator of their own, so that every other draw is as it
is without interventions.

Letters: C cells, R regulators.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from grn.config.schema import Simulation
from grn.runtime.errors import ConfigError

INTERVENTIONS = 6  # a further kind of draws (see network.py) with a generator of its own
GUIDES = 3  # of each regulator that is intervened on
CONTROLS = 0.2  # share of the cells
CONTROL = "control"  # their value in obs["intervention"]
TRUTH = "guides"  # key in uns of the table of guides: guide, target, works


@dataclass(frozen=True)
class Screen:
    """A simulated screen.

    remaining [C, R]: share of each regulator's production that a cell's guides leave.
    obs: columns intervention and guide, texts [C].
    guides: a table of all guides: guide, target, works.
    """

    remaining: np.ndarray
    obs: dict[str, np.ndarray]
    guides: pd.DataFrame

    @classmethod
    def of(cls, config: Simulation) -> Screen | None:
        """Draw a screen; return None without interventions.

        Raises ConfigError where cells should have two interventions, but there is one regulator to
        intervene on.
        """
        if not config.interventions:
            return None
        generator = np.random.default_rng([config.seed, INTERVENTIONS])
        count = max(1, round(config.interventions * config.regulators))
        if config.pairs and count < 2:
            raise ConfigError(
                f"{{field}} is {config.pairs}, but {config.interventions} of {config.regulators} "
                f"regulators is one",
                field="data.simulated.pairs",
                advice="raise data.simulated.interventions",
            )
        regulators = np.sort(generator.permutation(config.regulators)[:count])
        target = np.repeat(regulators, GUIDES)
        works = np.ones(len(target), bool)
        works[generator.permutation(len(target))[: round(config.failing * len(target))]] = False
        names = np.array(
            [f"R{gene + 1} g{number % GUIDES + 1}" for number, gene in enumerate(target)], object
        )

        first = generator.permutation(config.cells) % len(target)
        shift = generator.integers(1, max(count, 2), config.cells) * GUIDES
        second = (first + shift) % len(target)
        drawn = generator.random((2, config.cells))
        treated = drawn[0] >= CONTROLS
        twice = treated & (drawn[1] < config.pairs)
        remaining = np.ones((config.cells, config.regulators))
        for guide, cells in ((first, treated), (second, twice)):
            acting = np.flatnonzero(cells & works[guide])
            remaining[acting, target[guide[acting]]] = 1 - config.efficiency
        genes = np.array([f"R{gene + 1}" for gene in target], object)
        obs = {
            column: np.where(
                twice, of[first] + "+" + of[second], np.where(treated, of[first], control)
            )
            for column, of, control in (
                ("intervention", genes, CONTROL),
                ("guide", names, f"{CONTROL} g1"),
            )
        }
        index = [str(row) for row in range(len(names))]
        return cls(
            remaining,
            obs,
            pd.DataFrame({"guide": names, "target": genes, "works": works}, index=index),
        )
