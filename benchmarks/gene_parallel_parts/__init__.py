"""What `benchmarks/gene_parallel.py` is made of: training with shared genes, and its agreement with one device."""
