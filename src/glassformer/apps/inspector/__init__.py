"""The inspector: models that are open, the answers of each panel, and the page.

It imports `loading` and what `loading` imports. Begin with `app.py`, the routes; `panels/` has the answers.
"""
