"""The Triton kernels as operators of torch: registration, autograd, and the layout in which they
are called.
"""
