"""The exercises of the workshop, one module per chapter: tests and known mistakes of its functions."""
