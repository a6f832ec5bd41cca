"""The server for other programs: the endpoints of OpenAI's interface, and endpoints for the other kinds of models.

It imports the core and the inspector. Begin with `application.py`, the routes.
"""
