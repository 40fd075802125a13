"""The kernels of moments: attention in linear time. calls.py launches them."""
