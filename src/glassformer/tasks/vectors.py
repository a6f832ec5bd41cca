"""Vectors of texts: of a model that was taken over, and has no loss of its own (sentence encoders)."""

from collections.abc import Sequence
from dataclasses import replace

from glassformer.config.run import NoObjective, Run
from glassformer.config.transformer import VectorHead
from glassformer.tasks.task import TakesOver, Task
from glassformer.tokenization.tokenizer import Tokenizer


class TextVectors(Task, TakesOver):
    """One stack gives a vector of a text. No run can learn it."""

    settings = NoObjective
    verb = "embed"

    def learned(self, run: Run) -> str:
        return "make vectors of texts"

    def example(self, run: Run) -> str:
        return '"…"'

    def taken_over(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        is_for_vectors = isinstance(getattr(run.model, "head", None), VectorHead)
        return replace(run, objective=NoObjective()) if is_for_vectors else None


TASK = TextVectors()
