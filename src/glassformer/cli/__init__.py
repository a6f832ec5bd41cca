"""The command line: one file per verb, whose `main` takes typed arguments, calls the API and prints."""
