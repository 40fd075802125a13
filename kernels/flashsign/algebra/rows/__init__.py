"""The table of monoids in kernels/README.md: one row, or a few that belong together, a file."""
