"""Question answering: the task of imported models that mark the answer in a context. They cannot be trained."""

from collections.abc import Sequence
from dataclasses import replace

from glassformer.config.run import AnsweringConfig, Run
from glassformer.config.transformer import SpanHead
from glassformer.inference.answer import Answerer
from glassformer.tasks.model_parts import ModelParts
from glassformer.tasks.requirements import BUILT_IN
from glassformer.tasks.task import Task
from glassformer.tokenization.tokenizer import Tokenizer


class Answering(Task):
    """Question answering: a model with two logits per token marks the answer to a question in a context."""

    settings = AnsweringConfig
    facts = BUILT_IN["answers"]

    def answerer(self, model: ModelParts) -> Answerer:
        return Answerer(model.network, model.tokenizer, model.device)

    def adopt(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        if not isinstance(getattr(run.model, "head", None), SpanHead):
            return None
        return replace(run, objective=AnsweringConfig())


TASK = Answering()
