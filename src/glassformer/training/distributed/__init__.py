"""The processes of a run: how they start, communicate and share the weights."""
