"""Measured numbers: block sizes, costs of the methods, split keys, and the facts about a device that they depend on."""
