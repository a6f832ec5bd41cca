"""Training objectives. An objective is the only place that shifts, adds or corrupts tokens.

This folder imports only `data`, `nn` and what these import. Begin with `causal.py`.
"""
