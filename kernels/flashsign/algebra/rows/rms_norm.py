"""RMSNorm as a fold over the features of a row: z = sum_d x_d^2, finished as x / sqrt(z / D + eps).

The finish reads x too: dx = g / r + 2 x g_z with r = sqrt(z / D + eps), g_z = -<g, x> / (2 D r^3).
Letters: D features (items). Source: RMSNorm, arXiv 1910.07467.
"""

from __future__ import annotations

from torch import Tensor

from flashsign.algebra.monoid import Monoid, Total, add, constants, pass_on, wide
from flashsign.arguments import checked


@checked
def rms_norm_monoid(eps: float = 1e-6) -> Monoid:
    """Items (x [D, ...],) with shared (x,), the same tensor -> x / sqrt(mean over D of x^2 + eps), [D, ...].

    Example:
        >>> import torch
        >>> from flashsign import fold, rms_norm_monoid
        >>> x, monoid = torch.randn(8, 5), rms_norm_monoid(1e-6)  # 8 features of 5 rows
        >>> output = monoid.finish(fold(monoid, (x,), (x,)), (x,))
        >>> torch.allclose(output.T, torch.nn.functional.rms_norm(x.T, (8,), eps=1e-6), atol=1e-5)
        True
    """

    def lift(items: Total, shared: Total) -> Total:
        return (wide(items[0]).square(),)

    def finish(total: Total, shared: Total) -> Tensor:
        (z,), (x,) = total, shared
        return wide(x) / (z / max(1, len(x)) + eps).sqrt()

    return Monoid("RMSNorm", constants(0.0), lift, add, finish, pass_on, forms=("(x [n, ...]), shared (x [D, ...])",))
