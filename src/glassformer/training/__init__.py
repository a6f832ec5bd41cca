"""The training loop and its parts: optimizers, schedules, averages of weights."""
