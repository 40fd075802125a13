"""Triton kernels, one file each. What they compute is written in plain torch beside them, one folder up."""
