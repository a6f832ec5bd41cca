"""The training loop and its parts: the step, optimizers, schedules, averages of weights, processes.

This folder imports only `cost`, `tasks` and what these import. Begin with `loop.py`, then `step.py`.
"""
