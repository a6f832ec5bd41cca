"""Text to batches: sources → corpus (split) → tokens (memory-mapped) → batching; and a report on a text."""
