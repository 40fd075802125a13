"""Genes: their names, the choice of genes and regulators, lists, kinds of features, programmes."""
