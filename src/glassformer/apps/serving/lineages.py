"""The endpoints of all lineages: vectors, translations, masks, labels, tags and scores.

Each endpoint is a subclass of `Use`, with the name of the method of `Model` that it offers. A new endpoint needs a
class here, which the tuple at the end of this file lists, its request and answer in `lineage_schemas.py`, and its
ability in `Served.abilities` (`models.py`). Requests that wait at the same time are answered in batches (`batches.py`).
"""

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from fastapi import APIRouter, Request

from glassformer.apps.serving import lineage_schemas as schemas
from glassformer.apps.serving.errors import refusal
from glassformer.apps.serving.guard import note_ignored
from glassformer.apps.serving.models import Served, TheModels
from glassformer.apps.serving.schemas import ERRORS, prompts_of
from glassformer.apps.serving.texts import require_n, unless_gone
from glassformer.common.errors import quoted
from glassformer.data.batching import Example
from glassformer.data.rows import encode_tagged
from glassformer.inference.classify import text_rows
from glassformer.inference.text import check_ids
from glassformer.inference.translator import Translation
from glassformer.inspection.attention_maps import alignment
from glassformer.model import Model
from glassformer.model.one_or_list import is_sentence, texts_of

Body = TypeVar("Body", bound=schemas.OfModel)
TextOrIds = str | tuple[int, ...]
Answer = dict[str, Any]
"""The fields of an answer to an input."""


@dataclass(frozen=True)
class Use(Generic[Body]):
    """The use of a model with the settings of a request. Inputs of requests with equal settings share a batch."""

    served: Served
    body: Body
    """The request, with an empty text in place of its inputs."""

    path: ClassVar[str]
    ability: ClassVar[str]
    request: ClassVar[type[schemas.OfModel]]
    answer: ClassVar[type[schemas.Item]]
    given: ClassVar[tuple[str, ...]]
    """The parameters that are inputs."""

    @classmethod
    def of(cls, served: Served, body: Body) -> "Use[Body]":
        """Return the use for a request. In its `body`, an empty text replaces each input that the request has."""
        values = dict(body) | {"model": None}
        return cls(
            served, body.model_construct(**values | {name: "" for name in cls.given if values[name] is not None})
        )

    @classmethod
    def inputs(cls, body: Body) -> list[Any]:
        """Return the inputs of a request as a list."""
        given = getattr(body, cls.given[0])
        return [given] if isinstance(given, str) else given

    @property
    def model(self) -> Model:
        return self.served.model

    @property
    def search(self) -> dict[str, Any]:
        """The settings of a beam search that the request gives."""
        return {name: value for name, value in self.body if name in schemas.SEARCH and value is not None}

    @property
    def n_rows(self) -> int:
        """Number of rows that the model computes per input."""
        return 1

    def check(self) -> None:
        """Raise an error for settings that the model or the server does not support."""
        most = {"beam": self.served.limits.max_rows, "max_new_tokens": self.served.limits.max_tokens}
        for name in most.keys() & self.search.keys():
            if self.search[name] > most[name]:
                message = f"{name} is {self.search[name]:,}, and the limit of the server is {most[name]:,}"
                raise refusal(message, name)

    def n_tokens(self, one: Any) -> int:
        """Return the number of tokens of an input; raise an error for a wrong input."""
        raise NotImplementedError

    def answers(self, given: Sequence[Any]) -> list[Answer]:
        """Return the fields of the answer to each input."""
        raise NotImplementedError

    def log(self, note: str) -> None:
        """Raise `ApiError` with a note about texts that are cut, unless the request allows cutting."""
        if getattr(self.body, "truncation", "auto") == "disabled":
            raise refusal(f'{note}; shorten them, or set truncation to "auto"', "truncation")


class Embed(Use[schemas.EmbeddingRequest]):
    """Return a vector for each text, in the format of OpenAI's interface."""

    path, ability, given = "/v1/embeddings", "embeddings", ("input",)
    request, answer = schemas.EmbeddingRequest, schemas.Embedding

    @classmethod
    def inputs(cls, body: schemas.EmbeddingRequest) -> list[TextOrIds]:
        return [one if isinstance(one, str) else tuple(one) for one in prompts_of(body.input)]

    def check(self) -> None:
        size = self.model.embedder.size
        if self.body.dimensions not in (None, size):
            raise refusal(f"dimensions: the vectors of {self.served.name} have {size:,} numbers", "dimensions")

    def n_tokens(self, one: TextOrIds) -> int:
        return len(self._row(one).token_ids)

    def answers(self, given: Sequence[TextOrIds]) -> list[Answer]:
        vectors = self.model.embedder.embed_rows([self._row(one) for one in given])
        if self.body.encoding_format == "base64":  # the bytes of each vector, float32 in little-endian order
            return [{"embedding": base64.b64encode(one.astype("<f4").tobytes()).decode()} for one in vectors]
        return [{"embedding": one.tolist()} for one in vectors]

    def _row(self, one: TextOrIds) -> Example:
        embedder = self.model.embedder
        if isinstance(one, str):
            return embedder.rows([one], self.log)[0]
        check_ids([one], min(self.model.tokenizer.vocab_size, self.model.config.vocab_size))
        if len(one) > embedder.max_len:
            self.log(f"ids are longer than {embedder.max_len:,} tokens and are cut")
        return Example(np.array(one[: embedder.max_len], dtype=np.int64))


class Translate(Use[schemas.TranslationRequest]):
    """Return the best targets of each source, with scores and, if asked for, the alignment."""

    path, ability, given = "/v1/translate", "translate", ("sources",)
    request, answer = schemas.TranslationRequest, schemas.Targets

    @property
    def n_rows(self) -> int:
        return self.model.translator.beam(self.search).beam

    def check(self) -> None:
        super().check()
        translator = self.model.translator
        translator.search(translator.beam(self.search), self.body.n_best)  # raises the errors of the settings

    def n_tokens(self, one: str) -> int:
        return len(self.model.encode_source(one))

    def answers(self, given: Sequence[str]) -> list[Answer]:
        found = self.model.translations(given, n_best=self.body.n_best, prefix=self.body.prefix, **self.search)
        return [
            {"targets": [self._target(source, one) for one in best]} for source, best in zip(given, found, strict=True)
        ]

    def _target(self, source: str, found: Translation) -> schemas.Target:
        best = found.hypothesis
        target = schemas.Target(text=found.text, score=best.score, log_prob=best.log_prob, ended=best.ended)
        if self.body.alignment:
            before = [self.model.translator.start_id, *best.ids[:-1]]
            trace = self.model.attention(source=self.model.encode_source(source), target=before)
            target.alignment = schemas.Alignment(
                source_tokens=trace.source,
                target_tokens=self.model.tokenizer.tokens(best.ids),
                weights=alignment(trace).tolist(),
            )
        return target


class Fill(Use[schemas.FillRequest]):
    """Fill each `[MASK]` of a text with candidates and their probabilities, or with the text that a denoiser writes."""

    path, ability, given = "/v1/fill-mask", "fill_mask", ("text",)
    request, answer = schemas.FillRequest, schemas.FilledText

    @property
    def n_rows(self) -> int:
        return self.model.translator.beam(self.search).beam if self.model.is_seq2seq else 1

    def check(self) -> None:
        super().check()
        name, wrong = self.served.name, None
        if self.model.is_seq2seq and self.body.n is not None:
            wrong, why = "n", "writes whole texts without candidates"
        elif self.search and not self.model.is_seq2seq:
            wrong, why = next(iter(self.search)), "gives candidates without a search"
        if wrong is not None:
            raise refusal(f"{wrong}: {name} {why}; leave {wrong} out", wrong)

    def n_tokens(self, one: str) -> int:
        return len(self.model.filler.ids(one))

    def answers(self, given: Sequence[str]) -> list[Answer]:
        return [asdict(one) for one in self.model.fill(given, self.body.n or 5, **self.search)]


class Classify(Use[schemas.ClassificationRequest]):
    """Return the probability of each class, or the number of a regression model."""

    path, ability, given = "/v1/classify", "classify", ("texts",)
    request, answer = schemas.ClassificationRequest, schemas.Labels

    @classmethod
    def inputs(cls, body: schemas.ClassificationRequest) -> list[tuple[str, ...]]:
        return [(one,) if isinstance(one, str) else tuple(one) for one in super().inputs(body)]

    def check(self) -> None:
        self.model.classifier.threshold(self.body.threshold, self.body.label)

    def n_tokens(self, one: tuple[str, ...]) -> int:
        return len(text_rows(self.model.tokenizer, [one], self.model.config.max_len, self.log)[0].token_ids)

    def answers(self, given: Sequence[tuple[str, ...]]) -> list[Answer]:
        classifier = self.model.classifier
        found = classifier.classify(given, self.log)
        if classifier.is_regression:
            return found
        rule = classifier.threshold(self.body.threshold, self.body.label)
        return [{"classes": one, "labels": None if rule is None else rule.chosen(one)} for one in found]


class Tag(Use[schemas.TaggingRequest]):
    """Return the most probable tag of each word."""

    path, ability, given = "/v1/tag", "tag", ("sentences",)
    request, answer = schemas.TaggingRequest, schemas.TaggedSentence

    @classmethod
    def inputs(cls, body: schemas.TaggingRequest) -> list[list[str]]:
        given: Any = body.sentences
        if isinstance(given, str):
            return [given.split()]
        return [given] if is_sentence(None, given) else given

    def n_tokens(self, one: Sequence[str]) -> int:
        (row,), _ = encode_tagged(self.model.tokenizer, [one], self.model.config.max_len)
        return len(row.token_ids)

    def answers(self, given: Sequence[Sequence[str]]) -> list[Answer]:
        return [
            {"words": words, "tags": [name for name, _ in tags], "probabilities": [p for _, p in tags]}
            for words, tags in zip(given, self.model.tag(given, self.log), strict=True)
        ]


class Score(Use[schemas.ScoreRequest]):
    """Return the log probability of each text, alone or after its source."""

    path, ability, given = "/v1/score", "score", ("text", "source")
    request, answer = schemas.ScoreRequest, schemas.TextScore

    @classmethod
    def inputs(cls, body: schemas.ScoreRequest) -> list[tuple[str, ...]]:
        texts, targets, _ = texts_of(body.text, None, body.source)
        return list(zip(texts, strict=True) if targets is None else zip(texts, targets, strict=True))

    def n_tokens(self, one: tuple[str, ...]) -> int:
        n_tokens = sum(map(len, self.model.tokenizer.encode_batch(one)))
        most = max(self.model.config.max_len, self.served.limits.max_tokens)
        if n_tokens > most:
            raise refusal(
                f"{quoted(one[-1])} has {n_tokens:,} tokens, and the server reads at most {most:,}: shorten it"
            )
        return n_tokens

    def answers(self, given: Sequence[tuple[str, ...]]) -> list[Answer]:
        texts, *targets = ([*column] for column in zip(*given, strict=True))
        return [one.to_dict() for one in self.model.score(texts, *targets, log=lambda note: None)]


router = APIRouter(tags=["lineages"], responses=ERRORS)


def _add(use: type[Use[Any]]) -> None:
    async def answer(body: Any, models: TheModels, request: Request) -> Any:
        # Find the model, and the inputs
        served = models.get(body.model)
        served.require(use.ability)
        note_ignored(request, body.ignored())
        operation, inputs = use.of(served, body), use.inputs(body)
        if use is not Embed:  # its number of inputs is limited by the schema, as in OpenAI's interface
            require_n(models, len(inputs))

        # Wait for the answers, unless the client disconnects
        def prepared() -> list[int]:
            operation.check()
            return [operation.n_tokens(one) for one in inputs]

        async def answered() -> schemas.Answers[Any]:
            n_tokens = await served.preparing.run(prepared)
            found = await models.batches.run(operation, inputs, n_tokens)
            data = [use.answer(index=number, **one) for number, one in enumerate(found)]
            usage = schemas.TokensRead(prompt_tokens=sum(n_tokens), total_tokens=sum(n_tokens))
            return schemas.Answers[Any](data=data, model=served.name, usage=usage)

        with models.place():
            return await unless_gone(request, answered())

    answer.__annotations__["body"] = use.request  # FastAPI reads the type of the body there
    router.add_api_route(
        use.path,
        answer,
        methods=["POST"],
        name=use.ability,
        description=use.__doc__,
        response_model=schemas.Answers[use.answer],  # type: ignore[name-defined]
        response_model_exclude_none=use is not Score,  # a score that is not defined is null
    )


for one in (Embed, Translate, Fill, Classify, Tag, Score):
    _add(one)
