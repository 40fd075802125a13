"""What `benchmarks/training.py` is made of: made-up cells, the attentions, training steps, trace and agreement."""
