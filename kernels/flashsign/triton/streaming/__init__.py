"""The kernels of the stream, which loop over tiles of keys. calls.py launches them."""
