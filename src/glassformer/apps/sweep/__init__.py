"""Sweeps: variants of a run, each with several seeds, and a verdict on every difference.

Begin with `run.py`. `plan.py` has the variants, `runner.py` gives the runs to processes (`worker.py`), and `table.py`
has the result. The rule of the verdict is in `evaluation/verdict.py`.
"""
