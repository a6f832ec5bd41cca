"""EleutherAI's lm-evaluation-harness: our models under its tasks."""
