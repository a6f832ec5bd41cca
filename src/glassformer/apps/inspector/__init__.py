"""The inspector: models that are open, the answers of each panel, and the page.

The rooms below are `loading` and what it imports. Begin with `app.py`, the routes; `panels/` has the answers.
"""
