"""The command line: one file per verb, whose `main` takes typed arguments, calls the API and prints.

It may import every other folder. Begin with `main.py`, the table of verbs.
"""
