"""Tasks: what a model learns and then does. One file per task, one registry, protocols for optional abilities.

The rooms below are `evaluation`, `store` and what these import. Begin with `task.py`, then `language_modeling.py`.
"""
