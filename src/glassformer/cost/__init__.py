"""Cost of a configuration before it is built: parameters, FLOPs, bytes and time.

The rooms below are `tasks` and what it imports. Begin with `plan.py`.
"""
