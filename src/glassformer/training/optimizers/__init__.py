"""Optimizers: the function that builds them, their state in checkpoints, and optimizers that PyTorch does not have."""
