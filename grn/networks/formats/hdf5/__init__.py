"""Formats that are an AnnData in a file."""
