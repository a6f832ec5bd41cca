"""Settings of a model and of a run: frozen dataclasses, presets, recipes, and their conversion from TOML and flags.

They import `common` alone, and no torch. Begin with `run.py`: a `Run` holds everything that a training needs.
"""
