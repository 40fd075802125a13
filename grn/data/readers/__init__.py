"""One file format each: a file or folder becomes an AnnData. registry.py says which reader opens what."""
