"""Tasks: what a model learns and then does. One file per task, one registry, protocols for optional abilities."""
