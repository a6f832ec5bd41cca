"""Import and export: model directories from and to the formats of other programs, with numerical checks."""
