"""FlashSign: spherical attention over bags, one of a family of monoid folds. The algebra is in kernels/README.md."""

from flashsign.attention import spherical_attention
from flashsign.errors import BackendUnavailable, ShapeMismatch
from flashsign.reference import edge_weights

__all__ = ["BackendUnavailable", "ShapeMismatch", "edge_weights", "spherical_attention"]
