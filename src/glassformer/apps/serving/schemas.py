"""Requests and answers of the endpoints of OpenAI's interface, as the document `/openapi.json` describes them.

The server refuses an unknown parameter that would change the text (`REFUSED`), or whose name is similar to the name of
another parameter. It ignores any other unknown parameter, and the answer names that parameter in a header (`Open`).
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from glassformer.common.errors import nearest_name

MAX_STOP = 1024
"""Largest number of characters of a stop text."""
MAX_UNKNOWN = 32
"""Largest number of unknown parameters in an object of a request."""
MAX_NAME = 60
"""Number of characters of an unknown parameter's name that are compared and shown."""
_OFF: tuple[Any, ...] = (None, False, "", [], {})
"""Values that mean the same as an absent parameter. 0 is one of them, since 0 == False."""
REFUSED: dict[str, tuple[Any, ...]] = dict.fromkeys(
    (
        *("audio", "suffix", "web_search_options"),  # of OpenAI's interface
        *("allowed_token_ids", "bad_words", "chat_template", "chat_template_kwargs", "documents", "dry_multiplier"),
        *("dynatemp_range", "format", "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex"),
        *("ignore_eos", "include_stop_str_in_output", "json_schema", "logits_processors", "mirostat"),
        *("n_predict", "num_predict", "stop_sequences", "stop_token_ids", "structured_outputs"),
        *("echo", "max_completion_tokens", "system", "top_a", "truncate_prompt_tokens", "use_beam_search"),
        *("xtc_probability",),
    ),
    _OFF,
) | {
    "add_generation_prompt": (None, True),
    "best_of": (*_OFF, 1),
    "function_call": (*_OFF, "none", "auto"),
    "length_penalty": (*_OFF, 1),
    "modalities": (*_OFF, ["text"]),
    "repeat_penalty": (*_OFF, 1),
    "response_format": (*_OFF, {"type": "text"}),
    "skip_special_tokens": (None, True),
    "tfs_z": (*_OFF, 1),
    "tool_choice": (*_OFF, "none", "auto"),
    "typical_p": (*_OFF, 1),
}
"""Parameters that would change the text if the server obeyed them. Each has the values that change nothing."""

Finish = Literal["stop", "length"]
Id = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, StringConstraints(max_length=2**20)]
MAX_BIAS = 1024
"""Largest number of ids of a bias."""


def _require_few(given: Any) -> Any:
    if isinstance(given, dict) and len(given) > MAX_BIAS:
        raise PydanticCustomError("too_long", "a bias should have at most 1024 ids")
    return given


Bias = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_BIAS),
    BeforeValidator(_require_few),
]
Ids = Annotated[list[Id], Field(fail_fast=True, min_length=1)]


def _null_is(default: Any, kind: Any) -> BeforeValidator:
    """Return a validator that replaces null by the default of a parameter, as in OpenAI's interface."""
    return BeforeValidator(lambda value: default if value is None else value, json_schema_input_type=kind | None)


_Number = Annotated[int, Field(ge=1, le=128)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_NewTokens = Annotated[int, Field(ge=0)]
Number = Annotated[_Number, _null_is(1, _Number)]
Penalty = Annotated[_Penalty, _null_is(0.0, _Penalty)]
NewTokens = Annotated[_NewTokens, _null_is(16, _NewTokens)]
Flag = Annotated[bool, _null_is(False, bool)]


def _choice(kind: Callable[[Any], str | None], expected: str) -> Discriminator:
    """Return the rule that chooses the type of a value by `kind`; `expected` is for the error about other values."""
    return Discriminator(kind, custom_error_type="no_choice", custom_error_message=f"expected {expected}")


def _text_or_list(value: Any) -> str | None:
    match value:
        case str():
            return "text"
        case list():
            return "list"
    return None


def _kind_of_prompt(value: Any) -> str | None:
    match value:
        case str():
            return "text"
        case [str(), *_]:
            return "texts"
        case [list(), *_]:
            return "lists"
        case [_, *_]:
            return "ids"
    return None


Prompts = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[list[Text], Field(fail_fast=True, max_length=2048), Tag("texts")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[list[Ids], Field(fail_fast=True, max_length=2048), Tag("lists")],
    _choice(_kind_of_prompt, "a text, ids, or a list of texts or of lists of ids"),
]


def prompts_of(given: Any) -> list[str | list[int]]:
    """Return the prompts of a request as a list, in which a prompt is a text or a list of ids."""
    return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)


_Stop = Annotated[str, StringConstraints(max_length=MAX_STOP)]
Stops = Annotated[
    Annotated[_Stop, Tag("text")]
    | Annotated[list[Annotated[_Stop, StringConstraints(min_length=1)]], Field(max_length=16), Tag("list")],
    _choice(_text_or_list, "a text, or a list of texts"),
]


class Strict(BaseModel):
    """An object of a request; unknown parameters are refused, and so are values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    _ignored: list[str] = PrivateAttr(default_factory=list)

    @model_validator(mode="wrap")
    @classmethod
    def _without_unknown(cls, given: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        if not isinstance(given, dict):
            return handler(given)
        unknown = [name for name in given if name not in cls.model_fields]
        if len(unknown) > MAX_UNKNOWN:
            raise PydanticCustomError("many_unknown", "too many parameters", {"number": len(unknown)})
        for name in unknown:
            cls._require_harmless(name, given[name])
        found = handler({name: value for name, value in given.items() if name in cls.model_fields})
        found._ignored = [name for name in unknown if given[name] not in _OFF]
        return found

    @classmethod
    def _require_harmless(cls, name: str, value: Any) -> None:
        """Raise an error for a parameter that the server does not have and must not ignore."""
        _refuse("unknown_parameter", name, cls.model_fields)

    def ignored(self) -> Iterator[str]:
        """Yield the dotted name of each parameter that is set and not used; a name can come twice."""
        yield from self._ignored
        for name in self.model_fields_set:
            value = getattr(self, name)
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, Strict):
                    yield from (f"{name}.{inner}" for inner in one.ignored())


def _refuse(kind: Literal["unknown_parameter", "not_obeyed"], name: str, known: Iterable[str]) -> None:
    shown = name[:MAX_NAME].encode("utf-8", "backslashreplace").decode()  # pydantic takes no lone surrogate
    raise PydanticCustomError(kind, "unknown parameter", {"name": shown, "known": list(known)})


class Open(Strict):
    """An object of OpenAI's interface. It may have parameters that this server does not have."""

    model_config = ConfigDict(extra="ignore")

    @classmethod
    def _require_harmless(cls, name: str, value: Any) -> None:
        if value in _OFF:
            return
        near = nearest_name(name[:MAX_NAME], cls.model_fields, cutoff=0.82)
        if near is not None:
            _refuse("unknown_parameter", name, [near])
        if name in REFUSED and value not in REFUSED[name]:
            _refuse("not_obeyed", name, ())


class Part(Strict):
    """A part of a list in a request of OpenAI's interface. It may have any further parameters."""

    model_config = ConfigDict(extra="ignore")

    @classmethod
    def _require_harmless(cls, name: str, value: Any) -> None:
        pass


class StreamOptions(Open):
    """Options of a stream."""

    include_usage: Flag = Field(False, description="True to get a last part with the numbers of tokens.")


class Sampling(Open):
    """Parameters that completions and chats have in common. The model has a default for each absent parameter."""

    model: str | None = Field(None, description="The name of a model; may be absent if the server has only one.")
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(
        None, ge=-1, description="Not in OpenAI's interface: sample from the k most probable tokens; 0 or -1: from all."
    )
    min_p: float | None = Field(None, ge=0, le=1, description="Not in OpenAI's interface.")
    repetition_penalty: float | None = Field(None, gt=0, le=100, description="Not in OpenAI's interface.")
    no_repeat_ngram_size: int | None = Field(
        None, ge=0, description="Not in OpenAI's interface: no run of this many tokens occurs twice; 0: off."
    )
    min_tokens: int | None = Field(
        None, ge=0, description="Not in OpenAI's interface: number of new tokens before which the text cannot end."
    )
    n: Number = Field(1, description="Number of texts; limited by the server.")
    seed: int | None = Field(
        None, ge=-1, lt=2**63, description="Equal seeds give equal texts; absent, or -1: a new seed."
    )
    stop: Stops | None = Field(
        None,
        description="At most 16 texts of at most 1,024 characters. Each ends the output, which does not contain it.",
    )
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Bias | None = Field(None, description="For each id, a number that is added to its logit.")
    stream: Flag = False
    stream_options: StreamOptions | None = None


class CompletionRequest(Sampling):
    """Body of `POST /v1/completions`."""

    prompt: Prompts = Field(description="A text, ids, or a list of them. For an encoder-decoder, the source.")
    max_tokens: NewTokens = Field(16, description="Largest number of new tokens; 0 with `echo` only scores the prompt.")
    logprobs: int | None = Field(None, ge=0, le=20, description="Number of most probable tokens to return.")
    echo: Flag = Field(False, description="True to return the prompt, too.")
    best_of: int | None = Field(None, description="Refused unless it is `n`.")


class TextPart(Part):
    """A part of a message."""

    type: Literal["text"]
    text: Text


_Content = Annotated[
    Annotated[Text, Tag("text")] | Annotated[list[TextPart], Field(fail_fast=True), Tag("list")],
    _choice(_text_or_list, "a text, or a list of parts"),
]


class ChatMessage(Part):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: _Content | None = Field(None, description="Absent or null only with `tool_calls`.")
    tool_calls: list[dict[str, Any]] | None = Field(None, description="Calls of tools, for templates that read them.")
    tool_call_id: str | None = Field(None, description="The call that a message of the role `tool` answers.")
    name: str | None = Field(None, description="A name, for templates that read it.")

    @model_validator(mode="after")
    def _require_content(self) -> Self:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise PydanticCustomError(
                "no_content", "a message needs a content, unless it is one of the assistant with tool_calls"
            )
        return self

    def to_message(self) -> dict[str, Any]:
        """Return the message that a template reads: with one text, and with arguments of calls as objects."""
        parts = self.content or ""
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": "".join(x if isinstance(x, str) else x.text for x in parts)}
        if self.tool_calls:
            message["tool_calls"] = [_with_arguments(call) for call in self.tool_calls]
        return message | {k: v for k in ("tool_call_id", "name") if (v := getattr(self, k)) is not None}


def _with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments as an object, which templates expect, instead of a text of JSON."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        return call | {"function": function | {"arguments": json.loads(function["arguments"])}}
    except (ValueError, RecursionError):
        return call


class ChatRequest(Sampling):
    """Body of `POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(fail_fast=True, min_length=1, max_length=1024)
    max_tokens: int | None = Field(None, ge=1, description="Largest number of new tokens; absent: as many as fit.")
    max_completion_tokens: int | None = Field(None, ge=1, description="Another name of `max_tokens`.")
    logprobs: Flag = False
    top_logprobs: int | None = Field(None, ge=0, le=20, description="Needs `logprobs`.")
    continue_final_message: bool = Field(
        False, description="Not in OpenAI's interface: continue the last message, which is one of the assistant."
    )
    truncation: Literal["disabled", "auto"] = Field(
        "disabled", description="auto: the oldest turns are left out if the conversation does not fit the context."
    )


class PromptDetails(BaseModel):
    """Numbers of the prompt's tokens."""

    cached_tokens: int


class Usage(BaseModel):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = None


class Reply(BaseModel):
    """An answer with texts, or a part of its stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: Usage | None = None


class CompletionLogprobs(BaseModel):
    """Log probabilities that the model gives tokens, before temperature, penalties and bias."""

    tokens: list[str] = Field(description="A part of a character is shown by its bytes, such as `bytes:\\xe6\\x97`.")
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] = Field(description="The most probable tokens, and the token itself.")
    text_offset: list[int] = Field(description="Number of characters of the text before each token.")
    ids: list[int] = Field(description="Not in OpenAI's interface: the ids of `tokens`.")


class CompletionChoice(BaseModel):
    """One text."""

    index: int
    text: str
    finish_reason: Finish | None = None
    logprobs: CompletionLogprobs | None = None


class Completion(Reply):
    """Answer of `POST /v1/completions`, and each part of its stream."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class TopLogprob(BaseModel):
    """A token and its log probability."""

    token: str
    logprob: float
    bytes: list[int] | None
    id: int = Field(description="Not in OpenAI's interface.")


class TokenLogprob(TopLogprob):
    """A token of the answer, and the most probable tokens at its position."""

    top_logprobs: list[TopLogprob] = []


class ChatLogprobs(BaseModel):
    """Log probabilities that the model gives the answer's tokens, before temperature, penalties and bias."""

    content: list[TokenLogprob] = []
    refusal: None = None


class Answer(BaseModel):
    """A message of the assistant, or a part of it."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: Answer
    finish_reason: Finish | None = None
    logprobs: ChatLogprobs | None = None


class ChatCompletion(Reply):
    """Answer of `POST /v1/chat/completions`."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    left_out: int = Field(0, description="Number of messages that did not fit the context; see `truncation`.")


class ChatDelta(BaseModel):
    """A part of one answer."""

    index: int
    delta: Answer
    finish_reason: Finish | None = None
    logprobs: ChatLogprobs | None = None


class ChatChunk(Reply):
    """A part of the stream of `POST /v1/chat/completions`."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatDelta]
    left_out: int | None = None


class Prompt(BaseModel):
    """A prompt as the model reads it."""

    ids: list[int]
    text: str = Field(description="The text of the ids, special tokens included.")


class PromptList(BaseModel):
    """The prompts of a request."""

    prompts: list[Prompt]
    left_out: int = Field(0, description="Number of messages that did not fit the context; see `truncation`.")


class ServedModel(BaseModel):
    """A model of the server."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "glassformer"
    abilities: list[str] = Field(description="The endpoints that this model answers, such as `chat` and `translate`.")
    max_len: int = Field(description="The context in tokens.")
    learned: str
    n_parameters: int
    defaults: dict[str, float] = Field(
        description="The settings of a generation for a request that does not give them."
    )
    special_tokens: list[str]


class ServedModels(BaseModel):
    """The models of the server."""

    object: Literal["list"] = "list"
    data: list[ServedModel]


class ErrorDetail(BaseModel):
    """The mistake, and its parameter."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """Answer to a request that failed."""

    error: ErrorDetail


STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "The answer, or a stream."}
}
"""The answer of an endpoint that has `stream`, for `/openapi.json`."""

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": text}
    for status, text in {
        400: "A wrong request.",
        401: "The key is missing or wrong.",
        404: "There is no such model.",
        413: "The body is too large.",
        415: "The body is not JSON.",
        429: "Too many requests wait.",
        500: "The model failed.",
        504: "The deadline has passed.",
    }.items()
}
"""Answers with an error, for `/openapi.json`."""
