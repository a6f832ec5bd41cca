"""The command line: one file a verb. Its `main` takes typed words, makes one call of the API, and prints."""
