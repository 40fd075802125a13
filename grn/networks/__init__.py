"""Signed gene regulatory networks: read from a model, and written as AnnData and as a table of
edges.
"""
