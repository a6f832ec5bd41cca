"""Other people's formats: checkpoints of the ecosystem in, ours out, proven equal."""
