"""Edges that differ between two conditions."""
