"""What the tasks of an encoder-decoder share: translating, scoring targets, voting."""

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
    """The objective with the ids that the model and its tokenizers say."""
    if model.decoder_start_id is None or model.eos_id is None:
        raise UserError("an encoder-decoder needs decoder_start_id and eos_id in its configuration")
    source, target = tokenizers.source.frames.source, tokenizers.target.frames.target
    return Seq2SeqObjective(model.decoder_start_id, source, target, label_smoothing)


def beam(model: TrainedModel, settings: Mapping[str, Any]) -> BeamConfig:
    """How targets are searched for: as the model says, but for some settings."""
    config = model.generation if isinstance(model.generation, BeamConfig) else BeamConfig()
    return replace(config, **settings)


class EncoderDecoderTask(Translates, ScoresTexts, Votes):
    """A task whose models make targets from sources."""

    def translator(self, model: TrainedModel) -> Translator:
        """What makes targets with the model, or with all members of an ensemble."""
        return Translator(model.vote, model.tokenizer, model.source_tokenizer, model.device)

    def score(self, model: TrainedModel, texts: Sequence[str], targets: Sequence[str] | None, log: Log) -> list[Score]:
        """log p of each target given the text that is its source."""
        if targets is None:
            raise UserError(
                f"{model.name} makes a target from a source: give the target too, as score(target, source=…)"
            )
        return model.translator.score(texts, targets)

    def vote(self, run: Run, networks: Sequence[Network]) -> Ensemble:
        return Ensemble(networks)
