"""FlashSign: spherical attention over bags, one of a family of monoid folds. The algebra is in kernels/README.md."""

from flashsign.attention import spherical_attention
from flashsign.edges.sums import EdgeMeans, EdgeSums, TopEdges, top_edges
from flashsign.errors import BackendUnavailable, ShapeMismatch, UnusableTiles
from flashsign.reference import edge_weights

__all__ = [
    "BackendUnavailable",
    "EdgeMeans",
    "EdgeSums",
    "ShapeMismatch",
    "TopEdges",
    "UnusableTiles",
    "edge_weights",
    "spherical_attention",
    "top_edges",
]
