"""From an AnnData to cells: counts, genes, depth, multiplicities, and the split."""
