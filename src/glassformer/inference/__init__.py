"""Inference with a trained model: generation, beam search, scoring, classification, embedding and mask filling.

The files here import from `data`, `models`, `tokenization` and the packages that these import. Begin with `engine.py`,
the loop.
"""
