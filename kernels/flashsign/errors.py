"""What can be wrong with a call: one sentence each, with what was found."""


class ShapeMismatch(ValueError):
    """Tensors whose shapes, dtypes, devices or offsets do not fit together."""


class BackendUnavailable(RuntimeError):
    """A backend that was asked for by name and is not there."""
