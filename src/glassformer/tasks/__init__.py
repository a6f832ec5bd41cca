"""Tasks: what a model learns and then does. Files of tasks, and one registry (`task.py`).

The rooms below are `evaluation`, `store` and what these import. Begin with `task.py`, then `language_modeling.py`.
"""
