"""Translation from source text to target text, with one model or an ensemble: tokenizers and beam search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from glassformer.common.errors import Log, UserError, quoted, warn
from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.inference.beam import decode_sorted
from glassformer.inference.decodable import Ensemble
from glassformer.inference.score import Score, forced_scores
from glassformer.inference.search import Hypothesis, Search
from glassformer.inference.text import never_written
from glassformer.models.build import Network
from glassformer.tokenization.tokenizer import Tokenizers


@dataclass(frozen=True)
class Translation:
    """A text from beam search: the target of a source, or the continuation of a prompt."""

    text: str
    hypothesis: Hypothesis

    @property
    def is_finished(self) -> bool:
        """True if the model ended the target; False if the limit of tokens cut it, so that its score is not final."""
        return self.hypothesis.ended


class Translator:
    """Translator: an encoder-decoder or an ensemble of them, with its source and target tokenizers."""

    def __init__(
        self,
        model: Network | Ensemble,
        tokenizers: Tokenizers,
        device: torch.device | str = "cpu",
        generation: GenerationConfig | BeamConfig | None = None,
        name: str = "the model",
    ) -> None:
        """Set the model, the default settings of `beam` (`generation`), and the model's name in messages."""
        config = model.config
        if config.decoder_start_id is None or config.eos_id is None:
            raise UserError("decoder_start_id or eos_id is missing in the model's configuration: set both")
        self.model, self.device, self.name = model, device, name
        self.defaults = generation if isinstance(generation, BeamConfig) else BeamConfig()
        self.tokenizer, self.source_tokenizer = tokenizers.target, tokenizers.source
        self.start_id, self.end_id = config.decoder_start_id, config.eos_id
        self.vocab_size = config.vocab_size
        self.max_len, self.source_max_len = config.max_len, config.encoder_max_len

    def beam(self, settings: Mapping[str, Any]) -> BeamConfig:
        """Return the default settings of the beam search, with `settings` in place of some of them."""
        return replace(self.defaults, **settings)

    def source_ids(self, text: str) -> list[int]:
        """Return the encoder's input: the ids of the text, with the special tokens around it.

        Space around a text is removed, as in training pairs. Raises `UserError` for too many ids, or for none.
        """
        ids = self.source_tokenizer.frames.source.around(self.source_tokenizer.encode(text.strip()))
        if len(ids) > self.source_max_len:
            raise UserError(
                f"the source {quoted(text)} has {len(ids)} tokens and the model reads at most "
                f"{self.source_max_len}: split it, or train with a larger model.source_max_len"
            )
        if not ids:
            raise UserError("the source is empty and the tokenizer adds no end token: give a source text")
        return ids

    def target_ids(self, text: str) -> list[int]:
        """Return the decoder's input for a target: start token, tokens before every target, tokens of the text."""
        return [self.start_id, *self.tokenizer.frames.target.before, *self.tokenizer.encode(text)]

    def search(self, config: BeamConfig, n_best: int = 1, *, allowed: Sequence[int] = ()) -> Search:
        """Return the settings of a search for `n_best` targets per source; `allowed` are special tokens for targets."""
        written = [self.end_id, *config.end_ids, *allowed]
        suppress_ids = never_written(self.tokenizer, self.vocab_size, but=written)
        n_forced = len(self.tokenizer.frames.target.before)
        return Search(config, self.start_id, self.end_id, self.max_len, n_best, suppress_ids, n_forced)

    def hypotheses(
        self, sources: Sequence[Sequence[int]], search: Search, *, prefix: str = "", **options: Any
    ) -> list[list[Hypothesis]]:
        """Return the best targets of encoded sources (`source_ids`), best first; each target begins with `prefix`.

        `options` are those of `decode_sorted`: `progress` and `takes`.
        """
        before = [*self.tokenizer.frames.target.before, *self.tokenizer.encode(prefix)]
        return decode_sorted(self.model, sources, search, prefix=before, device=self.device, **options)

    def translate(self, sources: Sequence[str], config: BeamConfig, **options: Any) -> list[list[Translation]]:
        """Return the best targets of every source; `options` are those of `translate_ids`."""
        return self.translate_ids([self.source_ids(source) for source in sources], config, **options)

    def translate_ids(
        self, sources: Sequence[Sequence[int]], config: BeamConfig, n_best: int = 1, **options: Any
    ) -> list[list[Translation]]:
        """Return the `n_best` targets of encoded sources, best first; `options` are those of `hypotheses`."""
        hypotheses = self.hypotheses(sources, self.search(config, n_best), **options)
        return [[Translation(self.tokenizer.decode(h.text_ids), h) for h in of_source] for of_source in hypotheses]

    def score(self, sources: Sequence[str], targets: Sequence[str] | None, log: Log = warn) -> list[Score]:
        """Return log p of each target, including its end token, given its source.

        Space around sources and targets is removed, as in training pairs.
        """
        if targets is None:
            raise UserError(f"{self.name} scores a target given its source: give both, as score(target, source=…)")
        targets = [target.strip() for target in targets]
        around = self.tokenizer.frames.target.around
        targets_ids = [around(self.tokenizer.encode(target)) for target in targets]
        for target, ids in zip(targets, targets_ids, strict=True):
            if len(ids) > self.max_len:
                raise UserError(
                    f"the target {quoted(target)} has {len(ids)} tokens and the limit is {self.max_len}: shorten it"
                )
        sources_ids = [self.source_ids(source) for source in sources]
        scores = forced_scores(self.model, sources_ids, targets_ids, start_id=self.start_id, device=self.device)
        return [
            Score(float(sum(log_probs)), len(ids), len(target.encode("utf-8")), self.tokenizer.n_unknown(ids))
            for log_probs, ids, target in zip(scores, targets_ids, targets, strict=True)
        ]
