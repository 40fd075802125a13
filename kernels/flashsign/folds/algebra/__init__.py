"""Folds over commutative monoids: what a monoid is, how it is folded in slices, and how monoids are
put together.
"""
