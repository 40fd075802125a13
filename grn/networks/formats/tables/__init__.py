"""Formats that are a table, a row per edge."""
