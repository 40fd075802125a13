"""Spherical attention in torch operations, on any device, and what packed bags and derivatives need
there.
"""
