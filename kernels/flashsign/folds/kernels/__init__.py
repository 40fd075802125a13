"""Folds as kernels: attention by any row of one template, logits that are never stored, hidden
layers, RMSNorm.
"""
