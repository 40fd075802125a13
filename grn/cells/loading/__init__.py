"""From cells to batches: bags, what they hide, their order, and Lightning's loaders."""
