"""A run of `grn train`: from cells to a run folder, also after an interruption."""
