"""What cells say before and beside the training:
their states, folds and penalties, and knock-offs.
"""
