"""Spherical attention: the public call, its one record, its plan and its checks."""
