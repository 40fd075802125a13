"""What can be wrong with a call: one sentence each, with what was found."""


class ShapeMismatch(ValueError):
    """Tensors whose shapes, dtypes, devices or offsets do not fit together."""


class BackendUnavailable(RuntimeError):
    """A backend that was asked for by name and is not there."""


class UnusableTiles(RuntimeError):
    """A file of tiles that cannot be used on this device: see flashsign.autotune."""
