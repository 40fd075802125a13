"""Pictures of cells: what regulators do in them, and what a perturbation changes."""
