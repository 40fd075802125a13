"""A run: from cells to a run folder, and on after a break."""
