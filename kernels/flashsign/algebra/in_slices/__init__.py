"""A fold in slices: how it is cut, its total, and its gradients with D and without."""
