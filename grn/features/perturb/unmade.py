"""What an intervention does that nobody has made, as far as those that were made tell.

Three terms say where the other genes go with gene j; each is a direction of unit size:

    a   what goes with the gene in the cells: cov(x_i, xhat_j) / sd_i, where xhat_j is a ridge
        regression of x_j on the other genes, as a messenger alone is mostly noise
    m   what all interventions share: the mean of their effects
    l   what is special about it: E W E_j, a linear model of the effects less their mean from the
        genes' embeddings E, the leading directions of their correlations

    effect = c sqrt(|a|) (w_a a + w_m m + w_l l), the sum scaled to unit size

The weights w >= 0 tell best the directions of the interventions that were made, each left out in
turn with its cells. An intervention counts by how much of what was measured is no noise; so do the
effects in m and l. Beside them stands a small belief in a, which decides where they say nothing.
c, and how far genes may be from the effect (responsiveness.py), come from the same predictions.

Letters: C cells, N genes, n of them that explain others, T interventions, K of them left out, S
states, D directions. Source of l: Ahlmann-Eltze et al. 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.linalg import eigh
from scipy.optimize import nnls

from grn.cells.cells import Cells
from grn.cells.interventions import Interventions
from grn.evidence.caused import NORMAL, Caused
from grn.features.perturb.responsiveness import explained_share, response_sd

CELLS, LARGEST = 20_000, 1000  # cells and genes whose correlations are read
RIDGE = 1.0  # of the regression on other genes, in a gene's variance
DIRECTIONS, PENALTY = 10, 0.1  # of the embeddings, and of the linear model from them
BELIEF, COSINE = 0.1, 0.5  # in a: as so many interventions that it agrees with so well
CHANCE = 2.0  # sds of the mean of squares of noise, above which effects are no noise
LEFT_OUT = 30  # most interventions that are left out in turn
FEWEST = 50  # cells that are left without an intervention


@dataclass(frozen=True)
class Terms:
    """What is expected of one intervention.

    direction [3, N]: a, m and l, each of unit size.
    size: of a, |a|: by how many of their sds the other genes go with an sd of the gene.
    """

    direction: np.ndarray
    size: float


@dataclass(frozen=True)
class Fit:
    """What some of the cells say of their genes.

    keep [C]: bool, these cells.
    inverse [n, n]: of the correlations and RIDGE.
    embedding [N, D].
    """

    keep: np.ndarray
    inverse: np.ndarray
    embedding: np.ndarray


@dataclass(frozen=True)
class Unmade:
    """What was learned from the interventions that were made. The keys of guides have no effects.

    multiplicity: CSR [C, N], see `at_one_total`.
    membership [C, S]: of states, within which cells are compared.
    done: what was done to the cells.
    caused: what it caused.
    """

    multiplicity: sparse.csr_matrix
    membership: np.ndarray
    done: Interventions
    caused: Caused

    def effect(self, place: int) -> np.ndarray:
        """Of an intervention on the gene `place`, of the kind that was made, [N] in `caused.sd`."""
        terms = self._terms(place, None)
        found = np.zeros(self.multiplicity.shape[1])
        found[self._genes] = self.done.sign * self._scaled(terms, self._weights(), self._scale())
        return found

    @cached_property
    def sd(self) -> np.ndarray:
        """How far genes may be from `effect`, [N] in `caused.sd`: 95 % of the effects that were
        left out lie within NORMAL of it and of their own errors.
        """
        every = np.arange(len(self.done.names))
        found = np.zeros(self.multiplicity.shape[1])
        found[self._genes] = self._response_sd(every) * self._width
        return found

    @cached_property
    def _genes(self) -> np.ndarray:
        return np.setdiff1d(np.arange(self.multiplicity.shape[1]), self.done.key)

    @cached_property
    def _rows(self) -> np.ndarray:
        order = np.random.default_rng(0).permutation(self.multiplicity.shape[0])
        return np.sort(order[:CELLS])

    @cached_property
    def _values(self) -> sparse.csr_matrix:
        """CSR [C, N] of the cells that are read, without keys."""
        return self.multiplicity[self._rows][:, self._genes].tocsr()

    @cached_property
    def _sd(self) -> np.ndarray:
        """Within states, [N]."""
        values, share = self._values, self.membership[self._rows]
        size = np.maximum(share.sum(0), 1e-9)
        means = (values.T @ share) / size
        square = np.asarray(values.multiply(values).sum(0)).ravel() - np.square(means) @ size
        return np.sqrt(np.maximum(square / len(self._rows), 1e-12))

    @cached_property
    def _chosen(self) -> np.ndarray:
        """The genes [n] that explain others: those of the largest variance, and those that were
        intervened on.
        """
        largest = np.argsort(-self._sd, kind="stable")[:LARGEST]
        varies = largest[self._sd[largest] > 1e-5]
        return np.union1d(varies, self._position(self.done.place[self.done.place >= 0]))

    def _position(self, place: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._genes, place)

    def _centred(self, genes: np.ndarray) -> np.ndarray:
        """[C, .]: within states, in sds."""
        every = np.ones(len(self._rows), bool)
        return self._within(self._values[:, genes].toarray() / self._sd[genes], every)

    def _within(self, values: np.ndarray, keep: np.ndarray) -> np.ndarray:
        """The values [c, .] of the cells that are kept, less their states' means."""
        share = self.membership[self._rows[keep]]
        means = (share.T @ values) / np.maximum(share.sum(0), 1e-9)[:, None]
        return (values - share @ means).astype(np.float32)

    @cached_property
    def _x(self) -> np.ndarray:
        return self._centred(self._chosen)

    @cached_property
    def _gram(self) -> np.ndarray:
        return (self._x.T @ self._x).astype(np.float64)

    @cached_property
    def _z(self) -> np.ndarray:
        """Measured effects in their errors, [T, N]; NaN where there are none."""
        return (self.caused.effect / self.caused.error).T[:, self._genes].astype(np.float64)

    @cached_property
    def _share(self) -> np.ndarray:
        """How much of the measured effects of each intervention is no noise, [T], 0 to 1."""
        known = np.isfinite(self._z)
        count = np.maximum(known.sum(1), 1)
        square = np.where(known, np.square(self._z), 0).sum(1) / count
        real = np.maximum(square - 1 - CHANCE * np.sqrt(2 / count), 0)  # 2 / count: its variance
        return real / (1 + real)

    @cached_property
    def _effects(self) -> np.ndarray:
        """[T, N], without as much as is noise; 0 where there are none."""
        effects = np.nan_to_num(self.caused.effect).T[:, self._genes]
        return effects.astype(np.float64) * self._share[:, None]

    def _fit(self, without: int | None) -> Fit:
        """From cells without one of the interventions."""
        keep = np.ones(len(self._rows), bool)
        gram = self._gram
        if without is not None:
            keep[self.done.given[self._rows][:, [without]].nonzero()[0]] = False
            gone = self._x[~keep]
            gram = gram - gone.T @ gone
        correlation = gram / keep.sum()
        top = [max(len(gram) - DIRECTIONS, 0), len(gram) - 1]
        size, vectors = eigh(correlation, subset_by_index=top)
        axes = vectors / np.sqrt(np.maximum(size, 1e-6))
        inverse = np.linalg.inv(correlation + RIDGE * np.eye(len(gram)))
        return Fit(keep, inverse, self._along(axes, keep))

    @cached_property
    def _of_all(self) -> Fit:
        return self._fit(None)

    def _along(self, slopes: np.ndarray, keep: np.ndarray) -> np.ndarray:
        """How all genes go with sums of the chosen ones, [N, .], in their sds. slopes [n, .]."""
        scores = self._within(self._x[keep] @ slopes, keep)
        covariance = (self._values[keep].T @ scores).astype(np.float64) / keep.sum()
        return covariance / self._sd[:, None]

    def _going(self, own: int, fit: Fit) -> np.ndarray:
        """How the other genes go with gene `own`, as far as they explain it, [N]."""
        at = np.flatnonzero(self._chosen == own)
        if len(at):
            slopes = -fit.inverse[:, at] / fit.inverse[at, at]
            slopes[at] = 0
        else:
            x, values = self._x[fit.keep], self._centred(np.array([own]))[fit.keep]
            slopes = fit.inverse @ (x.T @ values) / len(x)
        found = self._along(slopes, fit.keep)[:, 0]
        found[own] = 0
        return found

    def _terms(self, place: int, without: int | None) -> Terms:
        """Of the gene `place`, from cells and interventions without one of these."""
        fit = self._of_all if without is None else self._fit(without)
        own = int(self._position(np.array(place)))
        others = np.array([each for each in range(len(self._effects)) if each != without], int)
        known = others[self.done.place[others] >= 0]
        going = self._going(own, fit)
        shared = self._effects[others].sum(0) / max(len(others), 1)
        special = self._special(fit.embedding, own, known)
        size = float(np.sqrt(np.square(going).mean()))
        return Terms(unit(np.stack([going, shared, special])), size)

    def _special(self, embedding: np.ndarray, own: int, known: np.ndarray) -> np.ndarray:
        """The effects of gene `own` less the mean, [N], from those of interventions `known`."""
        if len(known) < 2:
            return np.zeros(len(embedding))
        effects = self._effects[known]
        perturbed = embedding[self._position(self.done.place[known])]
        left, right = (
            each.T @ each + PENALTY * np.eye(embedding.shape[1]) for each in (embedding, perturbed)
        )
        apart = embedding.T @ (effects - effects.mean(0)).T @ perturbed
        return embedding @ np.linalg.solve(left, apart) @ np.linalg.solve(right, embedding[own])

    @cached_property
    def _left_out(self) -> dict[int, Terms]:
        """Of interventions that were made, as if they had not been: number -> terms."""
        given = np.asarray((self.done.given[self._rows] > 0).sum(0)).ravel()
        several = np.isfinite(self._z).sum(1) > 1
        there = (self.done.place >= 0) & several & (len(self._rows) - given >= FEWEST)
        known = np.random.default_rng(0).permutation(np.flatnonzero(there))[:LEFT_OUT]
        return {
            int(number): self._terms(int(self.done.place[number]), int(number))
            for number in np.sort(known)
        }

    @cached_property
    def _agreement(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Of each intervention left out: products of the terms [3, 3], and of the terms with what
        was measured [3], in its errors.
        """
        found = {}
        for number, terms in self._left_out.items():
            known = np.isfinite(self._z[number])
            error = self.caused.error[self._genes[known], number]
            directions, z = unit(terms.direction[:, known] / error), unit(self._z[number, known])
            weight = self._share[number] / known.sum()
            found[number] = weight * directions @ directions.T, weight * directions @ z
        return found

    def _weights(self, without: int | None = None) -> np.ndarray:
        """Of a, m and l."""
        square, product = BELIEF * np.eye(3), BELIEF * COSINE * np.array([1.0, 0, 0])
        for number, (of_terms, with_measured) in self._agreement.items():
            if number != without:
                square, product = square + of_terms, product + with_measured
        factor = np.linalg.cholesky(square)
        return nnls(factor.T, np.linalg.solve(factor, product))[0]

    @cached_property
    def _moved(self) -> dict[int, float]:
        """How far each intervention left out moved genes in the direction that was predicted."""
        found = {}
        for number, terms in self._left_out.items():
            direction = unit(self._weights(number) @ terms.direction)
            measured = self.caused.effect[self._genes, number]
            known = np.isfinite(measured)
            found[number] = float((direction * np.nan_to_num(measured)).sum() / known.sum())
        return found

    def _scale(self, without: int | None = None) -> float:
        """c; where no intervention tells it, NaN."""
        sizes = {
            number: terms.size for number, terms in self._left_out.items() if number != without
        }
        whole = sum(sizes.values())
        if not whole:
            return np.nan
        return (
            max(sum(self._moved[each] * np.sqrt(size) for each, size in sizes.items()), 0) / whole
        )

    def _scaled(self, terms: Terms, weights: np.ndarray, scale: float) -> np.ndarray:
        """Where no intervention tells how far genes move, as far as their association."""
        size = terms.size if np.isnan(scale) else scale * np.sqrt(terms.size)
        return size * unit(weights @ terms.direction)

    @cached_property
    def _residual(self) -> np.ndarray:
        """Measured effects, less what is predicted of those that were left out, [N, T]."""
        found = self.caused.effect[self._genes].astype(np.float64)
        for number, terms in self._left_out.items():
            found[:, number] -= self._scaled(terms, self._weights(number), self._scale(number))
        return found

    @cached_property
    def _explained(self) -> np.ndarray:
        return explained_share(self._values)

    def _response_sd(self, among: np.ndarray) -> np.ndarray:
        residual, error = self._residual[:, among], self.caused.error[self._genes][:, among]
        return response_sd(self._explained, replace(self.caused, effect=residual, error=error))

    @cached_property
    def _width(self) -> float:
        """What the expected sizes of residuals are multiplied by, so that those of interventions
        that are left out are within their intervals.
        """
        every, ratio = np.arange(len(self.done.names)), []
        for number in self._left_out:
            sd = self._response_sd(every[every != number])
            width = np.hypot(sd, self.caused.error[self._genes, number])
            ratio.append(np.abs(self._residual[:, number]) / width)
        if len(every) < 3 or not ratio:
            return 1.0
        return float(np.nanquantile(np.concatenate(ratio), 0.95)) / NORMAL


def at_one_total(cells: Cells) -> sparse.csr_matrix:
    """The multiplicities, CSR [C, N], of cells that are counted to the same total over all genes.

    Where regulators do not count for the depth, its estimate is that of fewer genes, and what all
    genes share of its noise makes an association of any two.
    """
    found, done = cells.multiplicity, cells.interventions
    genes = np.ones(found.shape[1], bool)
    if done is not None:
        genes[done.key] = False
    if cells.target_total is None or cells.measures_depth[genes].all():
        return found
    counted = found.astype(np.float64)
    of_gene = genes[counted.indices]
    counted.data[of_gene] = np.expm1(counted.data[of_gene])
    total = np.asarray(counted @ genes.astype(np.float64)).ravel()
    scale = np.divide(np.median(total), total, out=np.ones(len(total)), where=total > 0)
    counted.data *= np.where(of_gene, np.repeat(scale, np.diff(counted.indptr)), 1)
    counted.data[of_gene] = np.log1p(counted.data[of_gene])
    return counted.astype(np.float32)


def unit(direction: np.ndarray) -> np.ndarray:
    """Scaled to a root mean square of 1 along the last axis; zeros stay."""
    size = np.sqrt(np.square(direction).mean(-1, keepdims=True))
    return np.divide(direction, size, out=np.zeros_like(direction), where=size > 0)
