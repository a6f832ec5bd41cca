"""Facts about the built-in kinds of objectives, without an import of torch: verbs, and requirements of runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard, TypeVar

from glassformer.common.errors import UserError
from glassformer.config import run as r
from glassformer.config import transformer as c
from glassformer.config.recurrent import ModelConfig
from glassformer.config.train import AUTO, TrainConfig
from glassformer.evaluation import metrics, rewards

Data = TypeVar("Data", r.TextData, r.PairData, r.LabelData, r.ConversationData, r.PreferenceData, r.PromptData)


@dataclass(frozen=True)
class TextRequirements:
    """Requirements of an objective that learns from texts."""

    sentence: str
    """The stacks that the model must have, in words."""
    has_encoder: bool = False
    has_decoder: bool = False

    @property
    def predicts_next(self) -> bool:
        """True if tokens are predicted from earlier tokens; then documents get a start token, and bytes are counted."""
        return not self.has_encoder

    def has_its_stacks(self, model: ModelConfig) -> TypeGuard[c.TransformerConfig]:
        """Return True if a model has exactly the stacks that the objective needs."""
        stacks = self.has_encoder, self.has_decoder
        return (
            isinstance(model, c.TransformerConfig) and (model.encoder is not None, model.decoder is not None) == stacks
        )

    def check(self, run: r.Run) -> None:
        require_data(run, r.TextData)
        model = run.model
        if not self.has_its_stacks(model):
            raise UserError(self.sentence)
        if not isinstance(model.head, c.TokenHead):
            raise UserError(f"{self.sentence} and a head of kind tokens")
        for name in ("max_len", "source_max_len"):
            longest = getattr(model, name)
            if longest and context_of(run) > longest:
                raise UserError(f"data.context: expected at most model.{name} ({longest}), got {context_of(run)}")
        if self.predicts_next and not isinstance(run.generation, r.GenerationConfig):
            raise UserError(f"generation.kind: expected sampling for a language model, got {run.generation.kind}")
        if not self.predicts_next and isinstance(data_of(run, r.TextData).packing, r.PackedRows):
            raise UserError(f"objective.kind {run.objective.kind} does not support packed rows: leave out data.packing")
        if run.source_tokenizer is not None:
            raise UserError("source_tokenizer applies only to pairs: remove [source_tokenizer]")


def check_pairs(run: r.Run) -> None:
    """Raise `UserError` if a run does not suit the objective that learns from pairs."""
    require_data(run, r.PairData)
    model = run.model
    if isinstance(model, c.TransformerConfig):
        if not model.is_encoder_decoder:
            raise UserError("sequence-to-sequence needs both [model.encoder] and [model.decoder]")
        if not isinstance(model.head, c.TokenHead):
            raise UserError(f"model.head.kind: expected tokens for seq2seq, got {model.head.kind}")
    if not isinstance(run.generation, r.BeamConfig) and run.generation != r.GenerationConfig():
        raise UserError("sequence-to-sequence needs generation.kind beam: set it, or leave out [generation]")
    if run.train.batch_size != TrainConfig().batch_size:
        raise UserError("train.batch_size does not apply to pairs: set data.batch_tokens instead")
    if model.share_embeddings and run.source_tokenizer is not None:
        raise UserError("model.share_embeddings needs one tokenizer: leave out [source_tokenizer]")
    if model.source_vocab_size and run.source_tokenizer is None:
        raise UserError("model.source_vocab_size needs a [source_tokenizer]: add it, or leave out the size")


def check_answers(data: type[r.ConversationData] | type[r.PreferenceData] | type[r.PromptData], run: r.Run) -> None:
    """Raise `UserError` if a run does not suit an objective that learns the answers of an assistant."""
    require_data(run, data)
    model, kind = run.model, data.kind
    if not (CAUSAL_TEXT.has_its_stacks(model) and isinstance(model.head, c.TokenHead)):
        raise UserError(f"{kind} need a Transformer with only [model.decoder] and a head of kind tokens")
    if not isinstance(run.generation, r.GenerationConfig):
        raise UserError(f"generation.kind: expected sampling for {kind}, got {run.generation.kind}")
    if run.train.batch_size != TrainConfig().batch_size:
        instead = "objective.n_prompts" if data is r.PromptData else "data.batch_tokens"
        raise UserError(f"train.batch_size does not apply to {kind}: set {instead} instead")
    if run.source_tokenizer is not None:
        raise UserError("source_tokenizer applies only to pairs: remove [source_tokenizer]")
    if run.tokenizer.bpe_dropout:
        raise UserError(f"tokenizer.bpe_dropout does not apply to {kind}: set it to 0")


def check_compared(data: type[r.PreferenceData] | type[r.PromptData], run: r.Run) -> None:
    """Raise `UserError` if a run does not suit an objective that compares the model with its start."""
    check_answers(data, run)
    if run.init.path is None or run.init.model != "same":
        raise UserError(
            f"{data.kind} tune a model that has learned to answer: set init.path to its directory, and leave out "
            "init.model"
        )
    if run.parallel.strategy != "ddp":
        raise UserError(f"parallel.strategy: expected ddp for {data.kind}, got {run.parallel.strategy}")
    if isinstance(run.objective, r.GroupPolicyConfig):
        rewards.require_rewards(run.objective.rewards)
        n, train = run.objective.updates, run.train
        for key in ("max_steps", "eval_every", "checkpoint_every"):
            if (value := getattr(train, key) or 0) % n:
                raise UserError(
                    f"train.{key}: expected a multiple of objective.updates, {n}, got {value:,}; a run is saved after "
                    "the last update of its answers"
                )


def check_labels(outputs: Sequence[str], head: type[c.PositionHead] | type[c.SequenceHead], run: r.Run) -> None:
    """Raise `UserError` if a run does not suit an objective that learns these `data.outputs` with this head."""
    require_data(run, r.LabelData, outputs)
    model, data = run.model, data_of(run, r.LabelData)
    if not isinstance(model, c.TransformerConfig) or (model.encoder is not None and model.decoder is not None):
        raise UserError("labels need a Transformer with exactly one of [model.encoder] and [model.decoder]")
    if data.outputs in ("multi_label", "regression") and run.objective.label_smoothing:
        raise UserError(f"objective.label_smoothing does not apply to {data.outputs}: set it to 0")
    if getattr(run.objective, "class_weights", "none") != "none":
        if data.outputs in ("multi_label", "regression"):
            raise UserError(f"objective.class_weights does not apply to {data.outputs}: set it to none")
        if run.teacher is not None:
            raise UserError(
                "objective.class_weights does not apply to a run with a teacher, whose loss has no classes: set it to "
                "none, or leave out [teacher]"
            )
    if not isinstance(model.head, head):
        raise UserError(f"model.head.kind: expected {head.kind} for {data.outputs}, got {model.head.kind}")
    if data.second_field is not None and model.n_token_types < 2:
        raise UserError(
            f"model.n_token_types: expected 2 for pairs, got {model.n_token_types}; set --model.n-token-types 2"
        )
    if run.train.batch_size != TrainConfig().batch_size:
        raise UserError("train.batch_size does not apply to labelled texts: set data.batch_tokens instead")


CAUSAL_TEXT = TextRequirements(
    "causal language modelling needs a Transformer with only [model.decoder]", has_decoder=True
)
MASKED_TEXT = TextRequirements(
    "masked language modelling needs a Transformer with only [model.encoder]", has_encoder=True
)
DENOISED_TEXT = TextRequirements(
    "denoising needs a Transformer with both [model.encoder] and [model.decoder]", has_encoder=True, has_decoder=True
)
_CLASSES = partial(check_labels, ("classes", "multi_label", "regression"), c.SequenceHead)
_TAGS = partial(check_labels, ("tags",), c.PositionHead)
_CONVERSATIONS = partial(check_answers, r.ConversationData)
_PREFERENCES, _PROMPTS = partial(check_compared, r.PreferenceData), partial(check_compared, r.PromptData)


@dataclass(frozen=True)
class Facts:
    """Facts about models that were trained with one kind of objective."""

    verbs: tuple[str, ...]
    """Verbs (commands and methods, such as `generate`) that these models may have, the main verb first."""
    ability: str | Callable[[r.Run], str]
    """The ability in words that follow "learned to"."""
    home: str = ""
    """Module in `tasks` and name of a built-in task."""
    check: Callable[[r.Run], None] | None = None
    """Raises `UserError` if a run's data or model does not suit the objective; None for imported models, which cannot
    be trained, and for a task that checks its runs itself."""
    example: str = '"…"'
    """Example argument of the main verb, as Python code."""
    keeps_start: bool = False
    """True if the loss compares the model with its initial weights."""

    @property
    def all_verbs(self) -> tuple[str, ...]:
        """All verbs of these models: `verbs`, and `MEASURED` for models that can be trained."""
        return self.verbs if self.check is None else (*self.verbs, *MEASURED)

    def learned(self, run: r.Run) -> str:
        """Return the ability of a run's model in words that follow "learned to".

        >>> BUILT_IN["causal"].learned(r.Run())
        'continue a text'
        """
        return self.ability if isinstance(self.ability, str) else self.ability(run)


def _predicts_labels(run: r.Run) -> str:
    data = data_of(run, r.LabelData)
    predicted = {"regression": "a number", "multi_label": "labels"}.get(data.outputs, "a label")
    return f"predict {predicted} for {'a text' if data.second_field is None else 'two texts'}"


_CHATS, _ANSWER = ("chat", "generate", "score"), "answer in a conversation"
_FILLS, _MASK = ("fill", "translate", "score"), '"… [MASK] …"'
BUILT_IN: Mapping[str, Facts] = {
    "causal": Facts(("generate", "score", "chat"), "continue a text", "language_modeling:TASK", CAUSAL_TEXT.check),
    "masked": Facts(("fill",), "fill masks", "denoising:MASKED", MASKED_TEXT.check, _MASK),
    "infilling": Facts(_FILLS, "fill masks", "denoising:INFILLING", DENOISED_TEXT.check, _MASK),
    "spans": Facts(_FILLS, "fill masks", "denoising:SPANS", DENOISED_TEXT.check, _MASK),
    "seq2seq": Facts(
        ("translate", "score", "fill"), "generate a target from a source", "translation:TASK", check_pairs
    ),
    "classification": Facts(("classify",), _predicts_labels, "labels:CLASSIFICATION", _CLASSES),
    "conversation": Facts(_CHATS, _ANSWER, "conversation:TASK", _CONVERSATIONS),
    "preference": Facts(_CHATS, _ANSWER, "preference:PREFERENCE", _PREFERENCES, keeps_start=True),
    "group_policy": Facts(_CHATS, _ANSWER, "preference:GROUP_POLICY", _PROMPTS, keeps_start=True),
    "tagging": Facts(("tag",), "tag words", "labels:TAGGING", _TAGS),
    "none": Facts(("embed",), "compute text vectors", "labels:VECTORS"),
}
"""Facts about the models of each built-in kind. The task of a kind is imported when the kind is first used."""
MEASURED = ("evaluate", "compare")
"""Verbs that every kind has whose models can be trained."""
LABELLED = {"classification", "tagging"}
"""The kinds whose models predict classes or tags."""


def require_verb(run: r.Run, name: str, verb: str) -> None:
    """Raise `UserError` if no model of the run's kind has the verb; kinds of other packages are not checked."""
    facts = BUILT_IN.get(run.objective.kind)
    if facts is not None and verb not in facts.all_verbs:
        raise UserError(f"{name} learned to {facts.learned(run)}: use it with {facts.verbs[0]}, not {verb}")


def require_ensemble(run: r.Run, name: str) -> None:
    """Raise `UserError` if models of the run's kind cannot form an ensemble; `name` is the first of several models."""
    facts = BUILT_IN.get(run.objective.kind)
    if facts is not None and facts.verbs[0] != "translate":
        raise no_ensemble(name, facts.learned(run))


def no_ensemble(name: str, learned: str) -> UserError:
    """Return the error for several models of a kind that forms no ensemble."""
    return UserError(f"an ensemble can only translate; {name} learned to {learned}")


def require_classes(run: r.Run, name: str) -> None:
    """Raise `UserError` for a model of a built-in kind that predicts no classes or tags."""
    kind = run.objective.kind
    is_regression = isinstance(run.data, r.LabelData) and run.data.outputs == "regression"
    if kind in BUILT_IN and (kind not in LABELLED or is_regression):
        raise no_classes(name)


def no_classes(name: str) -> UserError:
    """Return the error for the confusion matrix of a model without classes."""
    return UserError(f"{name} predicts no classes or tags; a confusion matrix needs a classifier or a tagger")


# The metrics that a run can watch


def measured_losses(run: r.Run) -> list[str]:
    """Return the losses that the evaluations of a run of a built-in kind measure.

    >>> measured_losses(r.Run())
    ['loss', 'perplexity', 'bits_per_byte']
    """
    losses = ["loss"]
    if not run.data.has_perplexity:
        return losses
    losses.append("perplexity")
    if run.objective.label_smoothing:
        losses.append("smoothed_loss")
    if run.objective.kind == "causal":
        losses.append("bits_per_byte")
    return losses


def require_watched(run: r.Run, sections: Sequence[str]) -> None:
    """Raise `UserError` for a watched metric that is neither a measured loss nor a score of these sections."""
    known = [*measured_losses(run), *metrics.names(*sections)]
    learned = getattr(run.data, "outputs", run.objective.kind)
    for key, watcher in run.train.watchers.items():
        name = watcher.metric
        if name not in [AUTO, *known]:
            raise UserError(f"{key}.metric: {name!r} is not available for {learned}; choose one of {', '.join(known)}")


# The architecture that a use needs


def require_vectors(config: ModelConfig, name: str) -> None:
    """Raise `UserError` for a model of two stacks, which has no text vectors."""
    if config.is_encoder_decoder:
        raise UserError(f"{name} is an encoder-decoder, which has no text vectors: use a model of one stack")


def require_inputs(
    config: ModelConfig, name: str, *, text: object = None, source: object = None, target: object = None
) -> None:
    """Raise `UserError` unless an encoder-decoder gets a source, or a model of one stack gets only a text."""
    if config.is_encoder_decoder and (source is None or text is not None):
        raise UserError(
            f"{name} is a sequence-to-sequence model: give a source text (--source) and, optionally, a target"
        )
    if not config.is_encoder_decoder and (text is None or source is not None or target is not None):
        raise UserError(f"{name} has no source side: give one text (--text)")


def require_token_transformer(config: object, user: str) -> None:
    """Raise `UserError` for a model that has no residual stream, or predicts no tokens.

    `user` names the feature that needs both, for the message.
    """
    needs = f"{user} needs a Transformer with a head over tokens"
    if not isinstance(config, c.TransformerConfig):
        raise UserError(f"{needs}: this model is recurrent and has no residual stream")
    if not isinstance(config.head, c.TokenHead):
        raise UserError(f"{needs}: this model predicts labels or vectors")


def require_positions(config: ModelConfig, stack: str | None) -> None:
    """Raise `UserError` for a model without a position encoding, or without this stack."""
    if not isinstance(config, c.TransformerConfig):
        raise UserError("a recurrent model has no positions: it reads tokens in order")
    if stack is not None and stack not in config.stacks:
        raise UserError(f"this model has no {stack}")
    positions = config.positions
    is_unturned = isinstance(positions, c.RotaryPositions) and not any(positions.bases)
    if isinstance(positions, c.NoPositions) or is_unturned:
        raise UserError("this model has no positions: its mask alone gives the order")


def data_of(run: r.Run, wanted: type[Data]) -> Data:
    """Return the data of a run; raise `UserError` if the data is of another kind than `wanted`."""
    if not isinstance(run.data, wanted):
        raise UserError(f"data.kind of the run {run.name!r}: expected {wanted.kind}, got {run.data.kind}")
    return run.data


def context_of(run: r.Run) -> int:
    """Return the number of tokens per row that the model reads."""
    return data_of(run, r.TextData).context or run.model.max_len


def require_data(run: r.Run, wanted: type[r.DataConfig], outputs: Sequence[str] = ()) -> None:
    """Raise `UserError` if the run's data does not suit its objective; `outputs` are the allowed `data.outputs`.

    >>> require_data(r.Run(objective=r.Seq2SeqConfig()), r.PairData)
    Traceback (most recent call last):
    glassformer.common.errors.UserError: data.kind: expected pairs for objective.kind seq2seq, got text
    """
    data, kind = run.data, run.objective.kind
    if isinstance(data, wanted) and (not isinstance(data, r.LabelData) or data.outputs in outputs):
        return
    if isinstance(data, r.TextData) or {wanted, type(data)} & {r.ConversationData, r.PreferenceData, r.PromptData}:
        raise UserError(f"data.kind: expected {wanted.kind} for objective.kind {kind}, got {data.kind}")
    if isinstance(data, r.PairData):
        raise UserError(f"objective.kind: expected seq2seq for pairs, got {kind}")
    if isinstance(data, r.LabelData):
        right = "tagging" if data.outputs == "tags" else "classification"
        raise UserError(f"objective.kind: expected {right} for data.outputs {data.outputs}, got {kind}")
    raise UserError(f"data.kind: expected {wanted.kind} for objective.kind {kind}, got {data.kind}")
