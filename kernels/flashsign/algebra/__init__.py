"""Folds over commutative monoids: one row of the table in kernels/README.md a file."""
