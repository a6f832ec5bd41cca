"""Parts that every room uses: errors with one sentence, files, texts of numbers, seeds, tables in notebooks.

Nothing else of glassformer is imported here. Begin with `errors.py`: `UserError` is what a user sees.
"""
