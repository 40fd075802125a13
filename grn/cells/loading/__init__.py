"""From cells to batches: bags, masks, order, Lightning's loaders, and gene parallelism."""
