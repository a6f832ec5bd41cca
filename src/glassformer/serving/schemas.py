"""Requests and answers of the endpoints of OpenAI's interface, as the document `/openapi.json` describes them.

An unknown parameter is refused. Parameters that do not change a text are accepted (`_Ignored`). Parameters that the
server cannot obey are refused, unless their value has no effect.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

Finish = Literal["stop", "length"]
Id = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, StringConstraints(max_length=2**20)]
Bias = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=1024),
]
Ids = Annotated[list[Id], Field(min_length=1)]


def _null_is(default: Any, kind: Any) -> BeforeValidator:
    """Return a validator by which null means that a parameter is absent, as in OpenAI's interface."""
    return BeforeValidator(lambda value: default if value is None else value, json_schema_input_type=kind | None)


_Number = Annotated[int, Field(ge=1, le=128)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_NewTokens = Annotated[int, Field(ge=0)]
Number = Annotated[_Number, _null_is(1, _Number)]
Penalty = Annotated[_Penalty, _null_is(0.0, _Penalty)]
NewTokens = Annotated[_NewTokens, _null_is(16, _NewTokens)]
Flag = Annotated[bool, _null_is(False, bool)]


def _choice(kind: Callable[[Any], str | None], expected: str) -> Discriminator:
    """Return the rule by which a value chooses one of several types; `expected` is the sentence for other values."""
    return Discriminator(kind, custom_error_type="no_choice", custom_error_message=f"expected {expected}")


def _text_or_list(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    return "list" if isinstance(value, list) else None


def _kind_of_prompt(value: Any) -> str | None:
    if not isinstance(value, list):
        return _text_or_list(value)
    if not value:
        return None
    if isinstance(value[0], str):
        return "texts"
    return "lists" if isinstance(value[0], list) else "ids"


Prompts = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[list[Text], Field(max_length=128), Tag("texts")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[list[Ids], Field(max_length=128), Tag("lists")],
    _choice(_kind_of_prompt, "a text, ids, or a list of texts or of lists of ids"),
]
Stops = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[list[Annotated[Text, StringConstraints(min_length=1)]], Field(max_length=16), Tag("list")],
    _choice(_text_or_list, "a text, or a list of texts"),
]


class Strict(BaseModel):
    """A request; unknown parameters are refused, and so are values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        for name in given if isinstance(given, dict) else ():
            if name not in cls.model_fields:
                shown = name[:100].encode("utf-8", "backslashreplace").decode()  # pydantic takes no lone surrogate
                context = {"name": shown, "known": list(cls.model_fields)}
                raise PydanticCustomError("unknown_parameter", "unknown parameter", context)
        return given


class _Ignored(Strict):
    user: str | None = Field(None, description="Accepted, and not used.")
    metadata: dict[str, Any] | None = Field(None, description="Accepted, and not used.")
    store: bool | None = Field(None, description="Accepted, and not used: nothing is stored.")
    service_tier: str | None = Field(None, description="Accepted, and not used.")


class StreamOptions(Strict):
    """Options of a stream."""

    include_usage: bool = Field(False, description="True for a last part with the numbers of tokens.")


class Sampling(_Ignored):
    """Parameters that completions and chats have in common. A parameter that is absent has the model's own default."""

    model: str | None = Field(None, description="The name of a model; may be absent if the server has only one.")
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(
        None, ge=0, description="Not in OpenAI's interface: sample from the k most probable tokens."
    )
    min_p: float | None = Field(None, ge=0, le=1, description="Not in OpenAI's interface.")
    repetition_penalty: float | None = Field(None, gt=0, le=100, description="Not in OpenAI's interface.")
    n: Number = Field(1, description="Number of texts; limited by the server.")
    seed: int | None = Field(None, ge=0, lt=2**63, description="Equal seeds give equal texts; absent: a new seed.")
    stop: Stops | None = Field(None, description="Texts that end the output, which does not contain them.")
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Bias | None = Field(None, description="Numbers that are added to the logits, by id.")
    stream: Flag = False
    stream_options: StreamOptions | None = None


class CompletionRequest(Sampling):
    """Body of `POST /v1/completions`."""

    prompt: Prompts = Field(description="A text, ids, or a list of them; the source for an encoder-decoder.")
    max_tokens: NewTokens = Field(16, description="Largest number of new tokens; 0 with `echo` only scores the prompt.")
    logprobs: int | None = Field(None, ge=0, le=20, description="Number of most probable tokens to return.")
    echo: Flag = Field(False, description="True to return the prompt, too.")
    best_of: int | None = Field(None, description="Refused unless it is `n`.")
    suffix: str | None = Field(None, description="Refused: the server cannot insert a text.")


class TextPart(Strict):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class ChatMessage(Strict):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        Annotated[Text, Tag("text")] | Annotated[list[TextPart], Tag("list")],
        _choice(_text_or_list, "a text, or a list of parts"),
    ]
    name: str | None = Field(None, description="Accepted, and not used.")
    refusal: None = Field(None, description="Accepted, because answers contain it.")

    @property
    def text(self) -> str:
        """The text of all parts."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(Sampling):
    """Body of `POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=1024)
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
    response_format: dict[str, Any] | None = Field(None, description="Refused unless its type is text.")
    tools: list[Any] | None = Field(None, description="Not shown to the model, which answers with a text.")
    tool_choice: Any = Field(None, description='Refused unless it is "none" or "auto".')
    parallel_tool_calls: bool | None = Field(None, description="Accepted, and not used.")


class PromptDetails(BaseModel):
    """Numbers of the prompt's tokens."""

    cached_tokens: int


class Usage(BaseModel):
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = None


class CompletionLogprobs(BaseModel):
    """Log probabilities of tokens, of the model itself: before temperature, penalties and bias."""

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


class Completion(BaseModel):
    """Answer of `POST /v1/completions`, and each part of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(BaseModel):
    """A token and its log probability."""

    token: str
    logprob: float
    bytes: list[int] | None
    id: int = Field(description="Not in OpenAI's interface.")


class TokenLogprob(TopLogprob):
    """A token of the answer, and the most probable ones in its place."""

    top_logprobs: list[TopLogprob] = []


class ChatLogprobs(BaseModel):
    """Log probabilities of the answer's tokens, of the model itself: before temperature, penalties and bias."""

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


class ChatCompletion(BaseModel):
    """Answer of `POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None
    left_out: int = Field(0, description="Number of messages that did not fit the context; see `truncation`.")


class ChatDelta(BaseModel):
    """A part of one answer."""

    index: int
    delta: Answer
    finish_reason: Finish | None = None
    logprobs: ChatLogprobs | None = None


class ChatChunk(BaseModel):
    """A part of the stream of `POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatDelta]
    usage: Usage | None = None
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
    defaults: dict[str, float] = Field(description="Settings of a generation for a request that does not give them.")
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
"""The answer with `stream`, for the document of the interface."""

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
"""Answers with an error, for the document of the interface."""
