"""The model: the transformer and its parts, what they are trained for, and the folder that a model
is saved in.
"""
