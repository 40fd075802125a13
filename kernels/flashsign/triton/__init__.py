"""The Triton kernels. What they compute is written in torch operations in flashsign.eager and
flashsign.edges.
"""
