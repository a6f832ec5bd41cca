"""The server for other programs: the endpoints of OpenAI's interface, and those of the other lineages."""
