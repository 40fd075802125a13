"""FlashSign: spherical attention over bags, one of a family of folds over commutative monoids.

Attention:

    spherical_attention      attention whose weights keep a sign, in torch or on the GPU
    attention_by_scores      the same where all bags share one table of scores: two matrix products
    slope_penalty            a penalty on what the edges of such a table do: few and strong ones
    attention_and_penalty    both, which share passes over the table where it has at most 63 bags
    normalised_attention     spherical, L1, squared ReLU or softmax attention, from one template

Its weights:

    edge_weights             every one of them in memory: the definition
    EdgeSums                 sums of them over many bags; -> EdgeMeans, TopEdges, their means and
                             the strongest edges
    top_edges                the strongest edges where a table of all pairs is too large for memory

Layers that are folds:

    monoid_reduce            of blocks A x B
    fold, Fold               of items, of items as they come; fold_literal is the definition of fold
    linear_cross_entropy, distribution_cross_entropy, weighted_cross_entropy
                             behind a linear layer without logits
    mlp, rms_norm            without a hidden layer, without a normalised copy

Monoids:

    Monoid, check_monoid     monoids of one's own, their laws
    with_unit, product       monoids made of others
    SUM, WEIGHTED_SUM, WEIGHTED_MEAN, MAX, PRODUCT, LOG_SUM_EXP, LOG_WEIGHTED_SUM,
    LOG_WEIGHTED_MEAN, SAFE_EXPONENTIAL_SUM, SOFTMAX, DISTRIBUTION_CROSS_ENTROPY,
    WEIGHTED_CROSS_ENTROPY
                             monoids
    spherical_monoid, normalised_contraction, class_cross_entropy, mlp_monoid, rms_norm_monoid
                             return a monoid

The errors are ShapeMismatch, BrokenLaw and BackendUnavailable. A call with an argument that a
function does not have, or without one that it needs, raises TypeError.

Which kernel runs for a call: flashsign.attention.dispatch.plan. Importing flashsign does not import
Triton. The algebra is on one page in kernels/README.md.
"""

from flashsign.attention.reference import edge_weights
from flashsign.attention.spherical_attention import spherical_attention
from flashsign.edges.edge_sums import EdgeMeans, EdgeSums, TopEdges, top_edges
from flashsign.errors import BackendUnavailable, BrokenLaw, ShapeMismatch
from flashsign.folds.algebra.compose import product, with_unit
from flashsign.folds.algebra.fold import Fold, fold, fold_literal
from flashsign.folds.algebra.laws import check_monoid
from flashsign.folds.algebra.monoid import Monoid
from flashsign.folds.algebra.monoids.contractions import (
    SOFTMAX,
    normalised_contraction,
    spherical_monoid,
)
from flashsign.folds.algebra.monoids.cross_entropies import (
    DISTRIBUTION_CROSS_ENTROPY,
    WEIGHTED_CROSS_ENTROPY,
    class_cross_entropy,
)
from flashsign.folds.algebra.monoids.exponentials import (
    LOG_SUM_EXP,
    LOG_WEIGHTED_MEAN,
    LOG_WEIGHTED_SUM,
    SAFE_EXPONENTIAL_SUM,
)
from flashsign.folds.algebra.monoids.mlp import mlp_monoid
from flashsign.folds.algebra.monoids.sums import (
    MAX,
    PRODUCT,
    SUM,
    WEIGHTED_MEAN,
    WEIGHTED_SUM,
    rms_norm_monoid,
)
from flashsign.folds.algebra.reduce import monoid_reduce
from flashsign.folds.layers.cross_entropy import (
    distribution_cross_entropy,
    linear_cross_entropy,
    weighted_cross_entropy,
)
from flashsign.folds.layers.feed_forward import mlp
from flashsign.folds.layers.normalise import rms_norm
from flashsign.folds.layers.normalised_attention import normalised_attention
from flashsign.tables.shared_scores import attention_by_scores
from flashsign.tables.slope_penalty import attention_and_penalty, slope_penalty

__all__ = [
    "DISTRIBUTION_CROSS_ENTROPY",
    "LOG_SUM_EXP",
    "LOG_WEIGHTED_MEAN",
    "LOG_WEIGHTED_SUM",
    "MAX",
    "PRODUCT",
    "SAFE_EXPONENTIAL_SUM",
    "SOFTMAX",
    "SUM",
    "WEIGHTED_CROSS_ENTROPY",
    "WEIGHTED_MEAN",
    "WEIGHTED_SUM",
    "BackendUnavailable",
    "BrokenLaw",
    "EdgeMeans",
    "EdgeSums",
    "Fold",
    "Monoid",
    "ShapeMismatch",
    "TopEdges",
    "attention_and_penalty",
    "attention_by_scores",
    "check_monoid",
    "class_cross_entropy",
    "distribution_cross_entropy",
    "edge_weights",
    "fold",
    "fold_literal",
    "linear_cross_entropy",
    "mlp",
    "mlp_monoid",
    "monoid_reduce",
    "normalised_attention",
    "normalised_contraction",
    "product",
    "rms_norm",
    "rms_norm_monoid",
    "slope_penalty",
    "spherical_attention",
    "spherical_monoid",
    "top_edges",
    "weighted_cross_entropy",
    "with_unit",
]
