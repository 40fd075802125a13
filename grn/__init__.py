"""Gene regulatory networks and cell types from single-cell expression, with spherical attention."""

__version__ = "0.1.0"
