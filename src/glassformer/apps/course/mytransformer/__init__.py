"""My own Transformers: written by its reader, with torch as the only dependency."""
