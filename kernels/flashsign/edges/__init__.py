"""Sums and means over cells of the weight of every (target, regulator) pair."""
