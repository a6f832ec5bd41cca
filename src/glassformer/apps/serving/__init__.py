"""The server for other programs: the endpoints of OpenAI's interface, and those of the other lineages.

The rooms below are the core and the inspector. Begin with `application.py`, the routes.
"""
