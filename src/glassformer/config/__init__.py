"""Every setting of a model and of a run: frozen dataclasses, their named configurations, and how they are read."""
