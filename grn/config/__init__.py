"""Configurations of runs: schema.py has every field and its default, files.py reads and writes
them.
"""
