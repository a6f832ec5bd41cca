"""Training objectives. An objective is the only place that shifts, adds or corrupts tokens.

The rooms below are `data`, `nn` and what these import. Begin with `causal.py`.
"""
