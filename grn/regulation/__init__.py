"""The fit of the regulation layer: ensemble members, their penalty, held-out folds, and knock-offs."""
