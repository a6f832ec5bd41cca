"""Tasks: what a model learns and then does. `task.py` has the base classes and the registry of all tasks.

The files here import from `evaluation`, `store` and the packages that these import. Begin with `task.py`, then
`language_modeling.py`.
"""
