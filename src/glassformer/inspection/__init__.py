"""What happens inside a model, gathered and drawn."""
