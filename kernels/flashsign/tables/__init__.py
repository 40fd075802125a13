"""Attention over one table of scores that all bags share, and a penalty on it."""
