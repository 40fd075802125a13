"""What all Triton kernels share: launching, layout, the assignment of tiles to programs, and device functions."""
