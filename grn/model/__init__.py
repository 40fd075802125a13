"""The model: the transformer and its regulation layer, their objectives, and the folder that a model is saved in."""
