"""File formats of other programs that a network is written in, one a file; registry.py lists them."""
