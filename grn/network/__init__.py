"""From a trained model to signed networks: read-outs, cells to read them from, files."""
