"""Training: Lightning's loop around the model, and the run folder that comes out of it."""
