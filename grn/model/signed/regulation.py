"""The regulation of a model: one layer that compares all cells with each other, and one that knows the cell's state.

What differs between the states of cells (their types, for example) may be regulation or composition, and the cells
alone do not tell. So there are two layers. `pooled` reads every difference between cells and serves wherever a cell's
state is not known: in the transformer, for new cells. `by_state` reads differences between cells of one state alone,
with scores that may differ from state to state: the networks of the states, and what an edge has *within* them.

Letters: C cells, N genes, T genes of all packed bags, R regulators, K states.
"""

from __future__ import annotations

from torch import Tensor, nn

from grn.bags import Bags
from grn.model.signed.regulation_layer import RegulationLayer
from grn.model.signed.signed_attention import attend, faster_than_tables


class Regulation(nn.Module):
    """pooled: a layer with one state.   by_state: with K of them, or None where the cells have one state only.

    level_error: with what squared error the pooled slopes predict the levels of states that their fit has not seen, in
    variances of the levels: below 1, the levels of the targets follow those of their regulators; None without states.
    """

    def __init__(
        self, pooled: RegulationLayer, by_state: RegulationLayer | None = None, level_error: float | None = None
    ):
        super().__init__()
        self.pooled, self.by_state = pooled, by_state
        self.level_error = level_error

    def __deepcopy__(self, memo: dict) -> Regulation:
        """Itself: the layers, which may be large, are never trained again, so that copies of a model share them."""
        return self

    @property
    def regulators(self) -> Tensor:
        return self.pooled.regulators

    @property
    def levels_follow(self) -> bool:
        """Whether differences between states count as evidence for regulation."""
        return self.level_error is not None and self.level_error < 1

    @property
    def within(self) -> RegulationLayer:
        """The layer that reads differences between cells of one state; with one state, that is every difference."""
        return self.pooled if self.by_state is None else self.by_state

    def forward(self, multiplicity: Tensor, basal: Tensor | None = None, states: Tensor | None = None) -> Tensor:
        """multiplicity [C, R], basal [C] (None: 1) and, where they are known, states [C, K] -> [C, N] in sds."""
        if states is None or self.by_state is None:
            return self.pooled(multiplicity, basal)
        return self.by_state(multiplicity, basal, states)

    def of_bags(self, bags: Bags, multiplicity: Tensor) -> Tensor:
        """The same for the genes that bags list, shaped like bags.multiplicity. multiplicity [C, R]: of the regulators.

        Packed bags of a large vocabulary read by attention, all others by the tables of scores.
        """
        if bags.packed and faster_than_tables(self.pooled, bags.cells, len(bags.genes)):
            return attend(self.pooled, bags, multiplicity)
        return self.pooled(multiplicity, bags.basal)[bags.bag_of_gene(), bags.genes]
