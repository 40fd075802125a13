"""What the kernels are launched with: block sizes, costs, split keys, and what the device can do."""
