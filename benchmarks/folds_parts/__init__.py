"""Parts of benchmarks/folds.py."""
