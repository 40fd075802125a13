"""What all Triton kernels share: launching, and the device functions."""
