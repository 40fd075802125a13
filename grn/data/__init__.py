"""Expression files become cells, cells become bags."""
