"""The Triton kernels as operators of torch: registration, autograd, and the form in which they are called."""
