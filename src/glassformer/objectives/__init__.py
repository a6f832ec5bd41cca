"""Training objectives. An objective is the only place that shifts, adds or corrupts tokens."""
