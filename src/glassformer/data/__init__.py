"""The path from text to batches: sources → corpus (split) → tokens (memory-mapped) → batching; and a data report."""
