"""Block sizes, costs of the methods and split keys, all measured, and the facts about a device that
they depend on.
"""
