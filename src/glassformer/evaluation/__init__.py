"""How good a model is, each figure by one stated protocol."""
