"""Folds cut into slices: totals, gradients and plans."""
