"""The signed layer: the regulation layer, its attention, and the pair of them that a model holds."""
