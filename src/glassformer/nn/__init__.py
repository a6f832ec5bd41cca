"""Layers. Torch only: they take numbers, never configurations."""
