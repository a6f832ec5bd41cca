"""Settings of a model and of a run: frozen dataclasses, presets, recipes, and their conversion from TOML and flags.

This folder imports only `common`, and no torch. Begin with `run.py`: a `Run` has all settings of a training.
"""
