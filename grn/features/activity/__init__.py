"""How active regulators are in cells: from Python, of cells, and of a run."""
