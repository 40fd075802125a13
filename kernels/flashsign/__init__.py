"""FlashSign: spherical attention over bags, one of a family of folds over commutative monoids.

    spherical_attention                  attention whose weights keep a sign, in torch or on the GPU
    edge_weights                         its weights themselves, every one of them in memory: the definition
    EdgeSums -> EdgeMeans, TopEdges      sums of its weights over many bags, their means and the strongest edges
    top_edges                            the strongest edges where a table of all pairs is too large for memory
    fold, Monoid                         the algebra behind it; fold_literal is the definition of fold
    SUM, WEIGHTED_MEAN, SOFTMAX          monoids
    spherical_monoid, normalised_contraction                  functions that return a monoid
    ShapeMismatch, BackendUnavailable, UnusableTiles          the errors

Which kernel runs for a call: flashsign.dispatch.plan. Importing flashsign does not import Triton. The algebra is on one
page in kernels/README.md.
"""

from flashsign.algebra.fold import fold, fold_literal
from flashsign.algebra.monoid import Monoid
from flashsign.algebra.normalised_contraction import normalised_contraction
from flashsign.algebra.softmax import SOFTMAX
from flashsign.algebra.spherical import spherical_monoid
from flashsign.algebra.sums import SUM, WEIGHTED_MEAN
from flashsign.attention import spherical_attention
from flashsign.edges.edge_sums import EdgeSums
from flashsign.edges.replay import top_edges
from flashsign.edges.results import EdgeMeans, TopEdges
from flashsign.errors import BackendUnavailable, ShapeMismatch, UnusableTiles
from flashsign.reference import edge_weights

__all__ = [
    "SOFTMAX",
    "SUM",
    "WEIGHTED_MEAN",
    "BackendUnavailable",
    "EdgeMeans",
    "EdgeSums",
    "Monoid",
    "ShapeMismatch",
    "TopEdges",
    "UnusableTiles",
    "edge_weights",
    "fold",
    "fold_literal",
    "normalised_contraction",
    "spherical_attention",
    "spherical_monoid",
    "top_edges",
]
