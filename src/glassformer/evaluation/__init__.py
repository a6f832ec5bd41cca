"""Evaluation of models: every metric follows one documented protocol.

This folder imports only `objectives`, `inference` and what these import. Begin with `metrics.py`, the table of metrics.
"""
