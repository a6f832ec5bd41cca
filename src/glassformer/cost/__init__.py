"""Cost of a configuration before it is built: parameters, FLOPs, bytes and time.

This folder imports only `tasks` and what `tasks` imports. Begin with `plan.py`.
"""
