"""The moment kernels: attention in linear time. calls.py launches them."""
