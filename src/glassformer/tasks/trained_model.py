"""`TrainedModel`: the parts of a model, and the objects that its task makes of them."""

import functools
import sys
from dataclasses import dataclass
from typing import TypeVar

from glassformer.data.rows import encode_texts
from glassformer.evaluation.pairs import PairScores
from glassformer.inference.classify import Classifier, Embedder, Tagger
from glassformer.inference.decodable import Ensemble
from glassformer.inference.fill import Filler
from glassformer.inference.text import causal_frame
from glassformer.inference.translator import Translator
from glassformer.inference.writer import Writer
from glassformer.models.build import Network
from glassformer.tasks.requirements import require_vectors
from glassformer.tasks.task import ModelParts, Task, TrainableTask, task_of, wrong_verb
from glassformer.tokenization.conversations import ConversationEncoder

Ability = TypeVar("Ability")


@dataclass(frozen=True)
class TrainedModel(ModelParts):
    """A trained model with the abilities of its task. Access to an ability that the model lacks raises `UserError`."""

    @property
    def task(self) -> Task:
        """The task that the model was trained on."""
        return task_of(self.run)

    @property
    def trainable_task(self) -> TrainableTask:
        """The task, if models of this kind are trained and evaluated here."""
        if isinstance(self.task, TrainableTask):
            return self.task
        raise wrong_verb(self.task, self, "evaluate")

    def _able(self, ability: Ability | None, verb: str) -> Ability:
        """Return `ability`; raise `UserError` if it is None, because the model was trained on another task."""
        if ability is None:
            raise wrong_verb(self.task, self, verb)
        return ability

    # Facts

    @property
    def learned(self) -> str:
        """Description of the learned task."""
        return self.task.learned(self.run)

    @property
    def unit(self) -> str:
        """The unit that the loss is averaged over, such as "token"."""
        return self.trainable_task.unit

    @property
    def vote(self) -> Network | Ensemble:
        """The network that is evaluated: the single one, or all members of an ensemble."""
        return self.task.vote(self)

    @property
    def is_seq2seq(self) -> bool:
        """True if the model is an encoder-decoder, which generates a target from a source."""
        return self._translator is not None

    @property
    def is_causal_lm(self) -> bool:
        """True if the model predicts the next token of a text."""
        return self.task.predicts_next

    @property
    def takes_pairs(self) -> bool:
        """True if the model classifies pairs of texts."""
        return (classifier := self.task.classifier(self)) is not None and classifier.takes_pairs

    @property
    def is_multi_label(self) -> bool:
        """True if a text may have several labels, or none."""
        return (classifier := self.task.classifier(self)) is not None and classifier.is_multi_label

    @property
    def is_regression(self) -> bool:
        """True if the labels are numbers."""
        return (classifier := self.task.classifier(self)) is not None and classifier.is_regression

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of classes or tags, by index; empty for a regression model or a model without labels.

        An imported regression model may have a name in `labels`, which an export keeps.
        """
        return self.task.classes(self)

    @property
    def pair_scores(self) -> PairScores | None:
        """The object that scores outputs for sources; None for a model that is not evaluated on pairs."""
        return self.task.pair_scores(self.run) if isinstance(self.task, TrainableTask) else None

    # Abilities

    @property
    def writer(self) -> Writer:
        """The writer of texts of this model; raises `UserError` if the model does not continue texts."""
        return self._able(self.task.writer(self), "generate")

    @functools.cached_property
    def _translator(self) -> Translator | None:
        return self.task.translator(self)

    @property
    def translator(self) -> Translator:
        """The beam-search translator of this model; raises `UserError` if the model takes no source."""
        return self._able(self._translator, "translate")

    def require_source(self) -> None:
        """Raise `UserError` for a model that takes no source."""
        self._able(self._translator, "translate")

    @property
    def filler(self) -> Filler:
        """The object that fills the masks of texts."""
        return self._able(self.task.filler(self), "fill")

    @property
    def classifier(self) -> Classifier:
        """The object that predicts labels of texts."""
        return self._able(self.task.classifier(self), "classify")

    @property
    def predictor(self) -> Classifier | Tagger | None:
        """The object that predicts labels of texts or tags of words; None for a model of tokens or vectors."""
        return self.task.classifier(self) or self.task.tagger(self)

    @property
    def embedder(self) -> Embedder:
        """The object that computes text vectors; every model of one stack has one."""
        require_vectors(self.config, self.name)
        frame = causal_frame(self.tokenizer, self.config) if self.is_causal_lm else None
        return Embedder(self.network, self.tokenizer, self.device, frame)

    @functools.cached_property
    def conversation_encoder(self) -> ConversationEncoder:
        """The encoder of conversations; raises `UserError` for a model without a chat template."""
        return ConversationEncoder(self.tokenizer, self.name)

    def text_ids(self, text: str) -> list[int]:
        """Return the ids of one text with the special tokens of training, without cutting it to `max_len`.

        For an encoder-decoder, these are the ids that the encoder reads.
        """
        if self.is_seq2seq:
            return self.translator.source_ids(text)
        if self.is_causal_lm:
            return self.writer.encode(text).ids
        (row,), _ = encode_texts(self.tokenizer, [(text,)], sys.maxsize)
        return row.token_ids.tolist()
