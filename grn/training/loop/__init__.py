"""What Lightning runs: the task, its callbacks and its metrics."""
