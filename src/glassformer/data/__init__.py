"""The path from text to batches: sources → corpus (split) → tokens (memory-mapped) → batching; and a data report.

The rooms below are `config`, `tokenization` and `common`. Begin with `batching.py`: a `Batch` is what a step reads.
"""
