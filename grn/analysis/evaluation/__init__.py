"""Scores of a network against a reference, by the rules of BEELINE."""
