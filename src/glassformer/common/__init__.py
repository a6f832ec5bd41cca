"""Parts that all other folders use: errors of one sentence, files, formatted numbers, seeds, tables in notebooks.

Nothing else of glassformer is imported here. Begin with `errors.py`: `UserError` is what a user sees.
"""
