"""The path from text to batches: sources → corpus (split) → tokens (memory-mapped) → batching; and a data report.

This folder imports only `config`, `tokenization` and `common`. Begin with `batching.py`: a step reads a `Batch`.
"""
