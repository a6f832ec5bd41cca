"""Evaluation of glassformer models with EleutherAI's lm-evaluation-harness."""
