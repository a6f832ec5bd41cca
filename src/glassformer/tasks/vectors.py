"""Text vectors: the task of imported sentence encoders, which have no loss and cannot be trained."""

from collections.abc import Sequence
from dataclasses import replace

from glassformer.config.run import NoObjective, Run
from glassformer.config.transformer import VectorHead
from glassformer.tasks.requirements import BUILT_IN
from glassformer.tasks.task import Task
from glassformer.tokenization.tokenizer import Tokenizer


class TextVectors(Task):
    """Text vectors: a model of one stack computes a vector for each text."""

    settings = NoObjective
    facts = BUILT_IN["none"]

    def adopt(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        if not isinstance(getattr(run.model, "head", None), VectorHead):
            return None
        return replace(run, objective=NoObjective())


TASK = TextVectors()
