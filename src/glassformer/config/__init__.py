"""Settings of a model and of a run: frozen dataclasses, presets, and their conversion from TOML and flags."""
