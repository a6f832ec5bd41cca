"""Evaluation of models: every metric follows one documented protocol.

The rooms below are `objectives`, `inference` and what these import. Begin with `metrics.py`, the table of metrics.
"""
