"""Read-outs of the layers of the transformer: sizes, scores, signed weights and effects of their attention."""
