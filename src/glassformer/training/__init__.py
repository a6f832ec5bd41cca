"""The training loop and its parts: the step, optimizers, schedules, averages of weights, processes.

The rooms below are `cost`, `tasks` and what these import. Begin with `loop.py`, then `step.py`.
"""
