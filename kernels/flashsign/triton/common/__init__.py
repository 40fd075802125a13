"""Shared by all Triton kernels: launching, layout, the assignment of tiles to programs, and device
functions.
"""
