"""The parts of `benchmarks/classification.py` and `benchmarks/depth.py`: cells with labels, methods and pictures."""
