"""What runs inside Lightning: the training task, its callbacks and its metrics."""
