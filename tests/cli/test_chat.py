"""glassformer chat: a message, a file of turns, the commands of a terminal, and mistakes."""
