"""Shared code of the encoder-decoder tasks: translation, scores of targets, ensembles."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import BeamConfig, Run
from glassformer.errors import UserError
from glassformer.inference.ensemble import Ensemble
from glassformer.inference.score import Score
from glassformer.inference.translator import Translator
from glassformer.models.build import Network
from glassformer.objectives.seq2seq import Seq2SeqObjective
from glassformer.tasks.task import Log, ScoresTexts, TrainedModel, Translates, Votes
from glassformer.tokenization.tokenizer import Tokenizers


def objective_of(model: ModelConfig, tokenizers: Tokenizers, label_smoothing: float) -> Seq2SeqObjective:
    """Return the objective with the ids of the model and its tokenizers."""
    if model.decoder_start_id is None or model.eos_id is None:
        raise UserError("an encoder-decoder needs decoder_start_id and eos_id in its configuration")
    source, target = tokenizers.source.frames.source, tokenizers.target.frames.target
    return Seq2SeqObjective(model.decoder_start_id, source, target, label_smoothing)


def beam(model: TrainedModel, settings: Mapping[str, Any]) -> BeamConfig:
    """Return the model's beam search settings, with `settings` in place of some of them.

    Raises `UserError` for a setting of drafts, which only models that continue texts have.
    """
    for name in ("draft", "draft_tokens", "prompt_lookup", "counts"):
        if name in settings:
            raise UserError(f"{name}: a beam search has no drafts; leave it out, or use a model that continues texts")
    config = model.generation if isinstance(model.generation, BeamConfig) else BeamConfig()
    return replace(config, **settings)


class EncoderDecoderTask(Translates, ScoresTexts, Votes):
    """Base class of the tasks whose models generate targets from sources."""

    def translator(self, model: TrainedModel) -> Translator:
        """Return a translator for the model, or for all members of an ensemble."""
        return Translator(model.vote, model.tokenizers, model.device)

    def score(self, model: TrainedModel, texts: Sequence[str], targets: Sequence[str] | None, log: Log) -> list[Score]:
        """Return the log-probability of each target given its source in `texts`."""
        if targets is None:
            raise UserError(f"{model.name} scores a target given its source: give both, as score(target, source=…)")
        return model.translator.score(texts, targets)

    def vote(self, run: Run, networks: Sequence[Network]) -> Ensemble:
        return Ensemble(networks)
