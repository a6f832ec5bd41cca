"""Evaluation of models: every metric follows one documented protocol."""
