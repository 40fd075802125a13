"""The errors that flashsign defines. A message is a sentence that says what was found and what to
do.
"""


class ShapeMismatch(ValueError):
    """Raised where shapes, dtypes, devices or offsets do not fit together, or are of no tensors.

    Example:
        >>> import torch
        >>> from flashsign import ShapeMismatch, spherical_attention
        >>> q, k = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 5, 8)
        >>> try:
        ...     spherical_attention(q, k, k)
        ... except ShapeMismatch as error:
        ...     print(error)
        q and k must have the same head width; found q [1, 2, 3, 4], k [1, 2, 5, 8], v [1, 2, 5, 8].
    """


class BackendUnavailable(RuntimeError):
    """Raised where a call asks for a backend that cannot run it, by name; the message says why.

    Example:
        >>> import torch
        >>> from flashsign import BackendUnavailable, spherical_attention
        >>> q = torch.ones(1, 1, 3, 8, dtype=torch.float64)
        >>> try:
        ...     spherical_attention(q, q, q, backend="triton")
        ... except BackendUnavailable as error:
        ...     print("use the default backend instead")
        use the default backend instead
    """


class BrokenLaw(ValueError):
    """Raised by check_monoid; the message names the law that a monoid breaks.

    Example:
        >>> import torch
        >>> from flashsign import BrokenLaw, Monoid, check_monoid
        >>> difference = Monoid("difference", lambda like: (like[0] * 0,), lambda items, _: items,
        ...                     lambda a, b: (a[0] - b[0],), lambda total, _: total[0])
        >>> try:
        ...     check_monoid(difference, (torch.ones(3),))
        ... except BrokenLaw as error:
        ...     print(str(error).split(":")[0])
        difference breaks a law, identity, from the left
    """
