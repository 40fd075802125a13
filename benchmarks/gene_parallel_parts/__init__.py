"""The parts of `benchmarks/gene_parallel.py`: training with gene parallelism, and its agreement with one device."""
