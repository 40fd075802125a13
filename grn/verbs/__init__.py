"""The functions that `import grn` offers: AnnData or a path in, a Run, an AnnData or a table out."""
