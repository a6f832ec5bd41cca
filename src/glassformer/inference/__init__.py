"""Inference with a trained model: generation, beam search, scoring, classification, embedding and mask filling."""
