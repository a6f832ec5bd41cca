"""Optimizers: the function that builds them, their state in checkpoints, and those that PyTorch does not have."""
