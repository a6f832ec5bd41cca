"""Optimizers: one file each, the function that builds them, and their state in checkpoints."""
