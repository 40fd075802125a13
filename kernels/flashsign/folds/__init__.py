"""Layers that are folds over commutative monoids: the algebra, the layers and their kernels."""
