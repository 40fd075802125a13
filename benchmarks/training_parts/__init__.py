"""The parts of `benchmarks/training.py`: simulated cells, attention methods, training steps, trace and agreement."""
