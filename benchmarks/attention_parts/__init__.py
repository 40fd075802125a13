"""The parts of `benchmarks/attention.py`: points, methods, timing, tables and the picture."""
