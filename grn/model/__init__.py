"""The model: the transformer, its regulation layer, what it predicts, and how it is saved."""
