"""Requests and answers of the endpoints for vectors, translations, masks, labels, tags and scores.

Parameters have the names of the arguments of `Model`'s methods. Each answer has one item of `data` per input, in order.
"""

from dataclasses import fields
from math import isfinite
from typing import Annotated, Any, Generic, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

from glassformer.apps.serving.schemas import Open, Prompts, Strict, Text
from glassformer.config.run import BeamConfig
from glassformer.config.schema import setting_doc

MAX_INPUTS = 2048
"""Largest number of inputs of a request for vectors: OpenAI's limit."""
Texts = Text | Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=MAX_INPUTS)]
Word = Annotated[Text, StringConstraints(min_length=1)]
Words = Annotated[list[Word], Field(fail_fast=True, min_length=1)]
Pair = Annotated[list[Text], Field(min_length=2, max_length=2)]
Truncation = Literal["disabled", "auto"]


def _example(**body: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [body]})


class OfModel(Strict):
    """Body of a request to a model."""

    model: str | None = Field(None, description="The name of a model; may be absent if the server has only one.")


class Cutting(OfModel):
    """Body of a request with texts that may be cut."""

    truncation: Truncation = Field(
        "disabled", description="`auto`: a text that is too long is cut; `disabled`: it is an error."
    )


SEARCH = {field.name: field for field in fields(BeamConfig) if field.name != "end_ids"}
"""The settings of a beam search that a request may give. The model has a default for each absent one."""
BOUNDS = {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"}
"""The name of each bound in JSON Schema, and its name in pydantic."""
Request = TypeVar("Request", bound=OfModel)


def _searching(request: type[Request]) -> type[Request]:
    """Return a request type with the settings of a beam search as further parameters."""
    hints, settings = get_type_hints(BeamConfig), dict[str, Any]()
    for name, field in SEARCH.items():
        ranges = field.metadata.get("ranges", ())
        bounds = {BOUNDS[key]: x for one in ranges for key, x in one.bounds.items() if isfinite(x)}
        settings[name] = (hints[name] | None, Field(None, description=setting_doc(field), **bounds))
    return create_model(request.__name__, __base__=request, __doc__=request.__doc__, **settings)


class EmbeddingRequest(Cutting, Open):
    """Body of `POST /v1/embeddings`."""

    model_config = _example(model="minilm", input=["a red dog", "a blue cat"], encoding_format="float")

    input: Prompts = Field(
        description="A text, ids, or a list of them. Ids are read unchanged, without special tokens around them."
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="`base64`: the bytes of the numbers, float32 in little-endian order."
    )
    dimensions: int | None = Field(None, ge=1, description="Refused unless it is the size of the model's vectors.")


@_searching
class TranslationRequest(OfModel):
    """Body of `POST /v1/translate`."""

    model_config = _example(model="en-de", sources=["A dog runs."], n_best=2, beam=4, alignment=True)

    sources: Texts = Field(description="A source text, or several.")
    n_best: int = Field(1, ge=1, description="Number of targets per source; at most the beam.")
    prefix: Text = Field("", description="The beginning of every target.")
    alignment: bool = Field(False, description="True to return the attention from each target token to the source.")


@_searching
class FillRequest(OfModel):
    """Body of `POST /v1/fill-mask`. The settings of a search are for a model that writes whole texts."""

    model_config = _example(model="bert", text="The [MASK] sat on the mat.", n=3)

    text: Texts = Field(description="A text with one or more `[MASK]`, or several texts.")
    n: int | None = Field(None, ge=1, le=1000, description="Number of candidates per mask; absent: 5.")


class ClassificationRequest(Cutting):
    """Body of `POST /v1/classify`."""

    model_config = _example(model="reviews", texts=["A good film.", "Two hours too long."])

    texts: Text | Annotated[list[Text | Pair], Field(fail_fast=True, min_length=1, max_length=MAX_INPUTS)] = Field(
        description="A text, or a list of texts; for a model that reads pairs, a list of pairs of texts."
    )
    threshold: float | None = Field(
        None, ge=0, le=1, description="Also return `labels`: the classes of at least this probability."
    )
    label: Text | None = Field(
        None,
        description="For a model of two classes, the class whose probability is compared with `threshold`. If it is "
        "below, `labels` has the other class.",
    )


class TaggingRequest(Cutting):
    """Body of `POST /v1/tag`."""

    model_config = _example(model="tags", sentences=[["the", "dog", "runs"]])

    sentences: Text | Words | Annotated[list[Words], Field(fail_fast=True, min_length=1, max_length=MAX_INPUTS)] = (
        Field(
            description="A text whose words are separated by white space, a list of words, or several lists of words."
        )
    )


class ScoreRequest(OfModel):
    """Body of `POST /v1/score`."""

    model_config = _example(model="en-de", text=["Ein Hund rennt."], source=["A dog runs."])

    text: Texts = Field(description="A text, or several texts; with `source`, the targets.")
    source: Texts | None = Field(
        None, description="The source of each text, or the text before it. An encoder-decoder needs a source."
    )


class TokensRead(BaseModel):
    """Numbers of tokens."""

    prompt_tokens: int
    total_tokens: int


class Item(BaseModel):
    """An answer to an input."""

    index: int = Field(description="Number of the input, from 0.")


OneItem = TypeVar("OneItem", bound=Item)


class Answers(BaseModel, Generic[OneItem]):
    """The answers to the inputs of a request, in their order."""

    object: Literal["list"] = "list"
    model: str
    usage: TokensRead
    data: list[OneItem]


class Embedding(Item):
    """The vector of an input."""

    object: Literal["embedding"] = "embedding"
    embedding: list[float] | str = Field(description="The vector; a text in base64 if the request asks for it.")


class Alignment(BaseModel):
    """Attention from a target to its source: the mean over the heads of one layer."""

    source_tokens: list[str]
    target_tokens: list[str] = Field(description="The tokens of the target, the end token included.")
    weights: list[list[float]] = Field(description="One row per target token, one column per source token.")


class Target(BaseModel):
    """One target of a source."""

    text: str
    score: float = Field(description="The log probability divided by the length penalty; targets are ordered by it.")
    log_prob: float = Field(description="The log probability in nats, with that of the end token.")
    ended: bool = Field(description="False if the limit of tokens ended the target.")
    alignment: Alignment | None = None


class Targets(Item):
    """The targets of a source, best first."""

    targets: list[Target]


class Candidate(BaseModel):
    """A candidate: a token that may replace a mask."""

    text: str = Field(description="The text of the token, with its leading space.")
    probability: float
    token_id: int


class FilledText(Item):
    """A text with its masks filled."""

    text: str
    candidates: list[list[Candidate]] = Field(
        description="The candidates of each mask, best first; empty for a model that writes whole texts."
    )


class Labels(Item):
    """The classes of a text, or the number that a regression model predicts."""

    classes: Annotated[
        dict[str, float] | None,
        Field(description="The probability of each class; those of a multi-label model do not sum to 1."),
    ] = None
    labels: Annotated[list[str] | None, Field(description="The labels that `threshold` chooses.")] = None
    number: Annotated[float | None, Field(description="The number that a regression model predicts.")] = None


class TaggedSentence(Item):
    """The words of a sentence with their tags."""

    words: list[str]
    tags: list[str] = Field(description="The most probable tag of each word; words that were cut have no tag.")
    probabilities: list[float]


class TextScore(Item):
    """The log probability of a text. A value that is not defined, for example for an empty text, is null."""

    log_prob: float = Field(description="In nats.")
    n_tokens: int = Field(
        description="Tokens that were predicted: with the end token of a target, and without the first token for a "
        "model that was trained without a start token."
    )
    n_bytes: int
    nats_per_token: float | None
    bits_per_token: float | None
    bits_per_byte: float | None
    perplexity: float | None
