"""The command line: one file a verb. Each parses, makes one call of the API, and prints."""
