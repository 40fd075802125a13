"""Cell types and representations of cells."""
