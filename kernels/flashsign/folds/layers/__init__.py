"""Folds as layers that a model calls: cross entropies behind a linear layer, MLPs, RMSNorm."""
