"""Formats of programs for graphs."""
