"""Inference with a trained model: generation, beam search, scoring, classification, embedding and mask filling.

The rooms below are `data`, `models`, `tokenization` and what these import. Begin with `engine.py`, the loop.
"""
