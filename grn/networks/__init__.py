"""Networks as they are read from a trained model, with their evidence, and the files of a run."""
