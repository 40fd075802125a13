"""From expression files to cells (readers, preprocessing), and from cells to bags (loading)."""
