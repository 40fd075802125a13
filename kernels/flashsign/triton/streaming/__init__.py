"""The streaming kernels: keys pass by tile by tile. calls.py launches them."""
