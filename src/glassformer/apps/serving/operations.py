"""Uses of models whose inputs are answered in batches: vectors, targets, masks, labels and scores.

An operation calls the method of `Model` with the name of its endpoint. `n_tokens` raises the errors of an input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassformer.apps.serving import lineage_schemas as schemas
from glassformer.apps.serving.errors import ApiError
from glassformer.apps.serving.models import Served
from glassformer.common.errors import quoted
from glassformer.data.batching import Example
from glassformer.data.label_rows import encode_tagged
from glassformer.inference.classify import text_rows
from glassformer.inference.embed import Vectors
from glassformer.inference.fill import Filling
from glassformer.inference.score import Score
from glassformer.inference.text import check_ids
from glassformer.inference.translator import Translation
from glassformer.inspection.attention_maps import alignment
from glassformer.model import Model

TextOrIds = str | tuple[int, ...]
Settings = tuple[tuple[str, Any], ...]
"""Settings by name, in a form that is compared by value."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """The use of a model; `n_rows` are its rows per input."""

    served: Served
    n_rows: int = 1

    @property
    def model(self) -> Model:
        return self.served.model


@dataclass(frozen=True, kw_only=True)
class CuttingUse(Use):
    """The use of a model that cuts long texts."""

    truncation: schemas.Truncation

    def log(self, note: str) -> None:
        """Raise `ApiError` for a note about texts that are cut, unless the request allows it."""
        if self.truncation == "disabled":
            raise ApiError(400, f'{note}; shorten them, or set truncation to "auto"', param="truncation")


@dataclass(frozen=True, kw_only=True)
class Embed(CuttingUse):
    """Vectors of texts or ids."""

    def n_tokens(self, given: TextOrIds) -> int:
        return len(self._row(given).token_ids)

    def answers(self, given: Sequence[TextOrIds]) -> list[Vectors]:
        return list(self.model.embedder.embed_rows([self._row(one) for one in given]))

    def _row(self, given: TextOrIds) -> Example:
        embedder = self.model.embedder
        if isinstance(given, str):
            return embedder.rows([given], self.log)[0]
        check_ids([given], min(self.model.tokenizer.vocab_size, self.model.config.vocab_size))
        if len(given) > embedder.max_len:
            self.log(f"ids are longer than {embedder.max_len:,} tokens and are cut")
        return Example(np.array(given[: embedder.max_len], dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class Translate(Use):
    """The best targets of sources, each with its alignment if `aligns` is True."""

    n_best: int
    prefix: str
    aligns: bool
    settings: Settings

    def n_tokens(self, source: str) -> int:
        return len(self.model.encode_source(source))

    def answers(self, sources: Sequence[str]) -> list[list[schemas.Target]]:
        found = self.model.translations(sources, n_best=self.n_best, prefix=self.prefix, **dict(self.settings))
        return [[self._target(source, one) for one in best] for source, best in zip(sources, found, strict=True)]

    def _target(self, source: str, found: Translation) -> schemas.Target:
        hypothesis = found.hypothesis
        target = schemas.Target(
            text=found.text, score=hypothesis.score, log_prob=hypothesis.log_prob, ended=hypothesis.ended
        )
        if self.aligns:
            before = [self.model.translator.start_id, *hypothesis.ids[:-1]]
            trace = self.model.attention(source=self.model.encode_source(source), target=before)
            target.alignment = schemas.Alignment(
                source_tokens=trace.source,
                target_tokens=self.model.tokenizer.tokens(hypothesis.ids),
                weights=alignment(trace).tolist(),
            )
        return target


@dataclass(frozen=True, kw_only=True)
class Fill(Use):
    """Texts with their masks filled: `n` candidates per mask, or the text that a denoiser writes."""

    n: int
    settings: Settings

    def n_tokens(self, text: str) -> int:
        return len(self.model.filler.ids(text))

    def answers(self, texts: Sequence[str]) -> list[Filling]:
        return self.model.fill(texts, self.n, **dict(self.settings))


@dataclass(frozen=True, kw_only=True)
class Classify(CuttingUse):
    """The probabilities of classes, or a number, of texts or pairs of texts."""

    def n_tokens(self, texts: str | tuple[str, str]) -> int:
        row = (texts,) if isinstance(texts, str) else texts
        return len(text_rows(self.model.tokenizer, [row], self.model.config.max_len, self.log)[0].token_ids)

    def answers(self, texts: Sequence[str | tuple[str, str]]) -> list[dict[str, float]]:
        return self.model.classify(texts, self.log)


@dataclass(frozen=True, kw_only=True)
class Tag(CuttingUse):
    """The tags of words."""

    def n_tokens(self, words: Sequence[str]) -> int:
        (row,), _ = encode_tagged(self.model.tokenizer, [words], self.model.config.max_len)
        return len(row.token_ids)

    def answers(self, sentences: Sequence[Sequence[str]]) -> list[list[tuple[str, float]]]:
        return self.model.tag(sentences, self.log)


@dataclass(frozen=True, kw_only=True)
class ScoreTexts(Use):
    """The log probabilities of texts (target None), or of targets after their sources."""

    has_sources: bool

    def n_tokens(self, pair: tuple[str, ...]) -> int:
        n_tokens = sum(map(len, self.model.tokenizer.encode_batch(pair)))
        most = max(self.model.config.max_len, self.served.limits.max_tokens)
        if n_tokens > most:
            raise ApiError(
                400, f"{quoted(pair[-1])} has {n_tokens:,} tokens, and the server reads at most {most:,}: shorten it"
            )
        return n_tokens

    def answers(self, pairs: Sequence[tuple[str, ...]]) -> list[Score]:
        texts, *targets = ([*column] for column in zip(*pairs, strict=True))
        return self.model.score(texts, *targets, log=lambda note: None)
