"""Sweeps: variants of a run, each with several seeds, and a verdict on every difference.

Begin with `run.py`. `plan.py` has the variants, `runner.py` gives the runs to processes (`worker.py`). The table is
in `evaluation/sweep_table.py`, and the rule of the verdict in `evaluation/verdict.py`.
"""
