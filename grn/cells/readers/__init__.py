"""One module for each file format: it makes an AnnData of a file or folder. registry.py chooses the reader."""
