"""Question answering: the task of imported models that mark the answer in a context. They cannot be trained."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from glassformer.config.run import AnsweringConfig, Run
from glassformer.config.transformer import SpanHead
from glassformer.inference.answer import Answer, answer_questions
from glassformer.tasks.task import Answers, HasChoices, TakesOver, Task, TrainedModel
from glassformer.tokenization.tokenizer import Tokenizer


class Answering(Task, Answers, HasChoices, TakesOver):
    """Question answering: a model with two logits per token marks the answer to a question in a context."""

    settings = AnsweringConfig
    verb = "answer"

    def learned(self, run: Run) -> str:
        return "answer questions about a text"

    def example(self, run: Run) -> str:
        return '"…?", context="…"'

    def choices(self, run: Run, logits: Tensor) -> Tensor:
        return logits.transpose(-1, -2)  # the start and the end, each among all tokens

    def answer(self, model: TrainedModel, questions: Sequence[str], context: str, max_tokens: int) -> list[Answer]:
        return answer_questions(model.network, model.tokenizer, questions, context, max_tokens, model.device)

    def taken_over(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        is_for_spans = isinstance(getattr(run.model, "head", None), SpanHead)
        return replace(run, objective=AnsweringConfig()) if is_for_spans else None


TASK = Answering()
