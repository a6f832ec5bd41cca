"""Which objective a run on a text has, and how long the rows are that it is given."""

from dataclasses import dataclass

from glassformer.config.run import CausalConfig, InfillingConfig, MaskedConfig, ObjectiveConfig, Run, SpansConfig
from glassformer.config.transformer import TokenHead, TransformerConfig
from glassformer.errors import UserError
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.denoising import DenoisingObjective, infilling, spans
from glassformer.objectives.masked import MaskedObjective
from glassformer.objectives.objective import Objective
from glassformer.objectives.seq2seq import Seq2SeqObjective
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.tokenization.word_boundaries import word_boundaries


@dataclass(frozen=True)
class TextObjective:
    """An objective, and the ids of a row beyond which the model could not read what it makes of them."""

    objective: Objective
    row_length: int
    overlap: int = 0
    """Ids that windows of an evaluation share: 1 where an id is the target of the one before it."""


def sentinels(n: int) -> tuple[str, ...]:
    """The special tokens that stand for spans.

    >>> sentinels(2)
    ('[SPAN_0]', '[SPAN_1]')
    """
    return tuple(f"[SPAN_{i}]" for i in range(n))


def needed_special_tokens(objective: ObjectiveConfig) -> tuple[str, ...]:
    """Special tokens without which an objective cannot be."""
    if isinstance(objective, SpansConfig):
        return ("[EOS]", *sentinels(objective.n_sentinels))
    return {"masked": ("[MASK]",), "infilling": ("[MASK]", "[EOS]")}.get(objective.kind, ())


def check_model(run: Run) -> None:
    """`UserError` when the run's objective is none for a text, or its model none for the objective."""
    model, kind = run.model, run.objective.kind
    if not isinstance(run.objective, (CausalConfig, MaskedConfig, InfillingConfig, SpansConfig)):
        needs = "pairs" if kind == "seq2seq" else "texts with labels"
        raise UserError(f"the objective {kind} needs {needs} (data.kind), and the data is a text")
    wanted = {
        "causal": (False, True, "predicting the next token needs a Transformer with [model.decoder] alone"),
        "masked": (True, False, "predicting masked tokens needs a Transformer with [model.encoder] alone"),
    }
    encoder, decoder, sentence = wanted.get(
        kind, (True, True, "restoring a text needs a Transformer with [model.encoder] and [model.decoder]")
    )
    has = isinstance(model, TransformerConfig)
    if not has or (model.encoder is not None, model.decoder is not None) != (encoder, decoder):  # type: ignore[union-attr]
        raise UserError(sentence)
    if not isinstance(model.head, TokenHead):  # type: ignore[union-attr]
        raise UserError(f"{sentence} and a head of kind tokens")


def text_objective(run: Run, tokenizer: Tokenizer, context: int) -> TextObjective:
    """What a run on a text learns; the model must know the tokenizer's ids already (`launch.complete`)."""
    config, model, edges = run.objective, run.model, word_boundaries(tokenizer)
    if isinstance(config, CausalConfig):
        start = start_id_of(run)
        unscored = None if start == tokenizer.eos_id else start  # where one token does both, it is the target that ends
        return TextObjective(CausalObjective(config.label_smoothing, unscored), context + 1, overlap=1)
    if isinstance(config, MaskedConfig):
        assert tokenizer.mask_id is not None  # needed_special_tokens
        if config.whole_words and tokenizer.scheme == "whitespace":
            raise UserError(
                "objective.whole_words: pieces of a whitespace tokenizer do not tell where a word ends; use another "
                "tokenizer.scheme, or leave it out"
            )
        masked = MaskedObjective(
            tokenizer.mask_id,
            edges,
            config.mask_prob,
            config.whole_words,
            tokenizer.frames.text,
            config.label_smoothing,
        )
        return TextObjective(masked, context - masked.frame.n_added)
    assert model.decoder_start_id is not None and tokenizer.eos_id is not None
    source, target = tokenizer.frames.source, tokenizer.frames.target
    pairs = Seq2SeqObjective(model.decoder_start_id, source, target, config.label_smoothing)
    if isinstance(config, InfillingConfig):
        assert tokenizer.mask_id is not None
        noise = infilling(
            edges, tokenizer.mask_id, config.noise_density, config.mean_span_length, config.permute_sentences
        )
    else:
        assert isinstance(config, SpansConfig)
        noise = spans(sentinel_ids(tokenizer), config.noise_density, config.mean_span_length)
    return TextObjective(DenoisingObjective(noise, pairs), context - max(source.n_added, target.n_added))


def start_id_of(run: Run) -> int | None:
    """The id that begins each document of a run on next tokens, as its configuration records; None where none does."""
    return run.model.decoder_start_id if isinstance(run.objective, CausalConfig) else None


def sentinel_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids of the sentinels that a tokenizer has, in their order: ours, or T5's."""
    for spelling in ("[SPAN_{}]", "<extra_id_{}>"):
        found: list[int] = []
        while (token := tokenizer.token_to_id(spelling.format(len(found)))) is not None:
            found.append(token)
        if found:
            break
    return found
