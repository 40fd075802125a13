"""Genes: their names and which are used, lists of them, which features are genes, programmes."""
