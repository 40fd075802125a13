"""What `benchmarks/attention.py` is made of: the points, the methods, the clock, the tables and the picture."""
