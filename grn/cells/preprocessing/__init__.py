"""From an AnnData to cells: counts, genes, sequencing depth, multiplicities, and the split."""
