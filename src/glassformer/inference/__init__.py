"""Using a trained model: drawing the next token, and generating step by step."""
