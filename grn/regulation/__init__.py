"""Fitting the regulation layer: its ensemble members, their penalty, held-out folds and knock-offs."""
