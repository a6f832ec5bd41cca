"""Import and export: model directories from and to the formats of other programs, with numerical checks.

It imports the core and the inspector's page. Begin with `family.py`; `families/` has one file per family.
"""
