"""From source text to target text: tokenizers around the beam search, for one model or an ensemble."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from glassformer.config.run import BeamConfig
from glassformer.errors import UserError, quoted
from glassformer.inference.beam import Hypothesis, decode_sorted
from glassformer.inference.decode import never_written
from glassformer.inference.ensemble import Ensemble
from glassformer.inference.score import Score, forced_scores
from glassformer.models.build import Network
from glassformer.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class Translation:
    """A target that a beam found."""

    text: str
    hypothesis: Hypothesis


class Translator:
    """An encoder-decoder or several that vote, their pair of tokenizers, and the way from a text to a text."""

    def __init__(
        self,
        model: Network | Ensemble,
        tokenizer: Tokenizer,
        source_tokenizer: Tokenizer,
        device: torch.device | str = "cpu",
    ) -> None:
        config = model.config
        if config.decoder_start_id is None or config.eos_id is None:
            raise UserError("the model's configuration names no decoder_start_id or no eos_id")
        self.model, self.device = model, device
        self.tokenizer, self.source_tokenizer = tokenizer, source_tokenizer
        self.start_id, self.end_id = config.decoder_start_id, config.eos_id
        self.vocab_size = config.vocab_size
        self.max_len, self.source_max_len = config.max_len, config.encoder_max_len

    def source_ids(self, text: str) -> list[int]:
        """What the encoder reads: the text's ids in their frame. `UserError` when they are too many.

        Space around a text is left out, as it is where pairs are read for training.
        """
        ids = self.source_tokenizer.frames.source.around(self.source_tokenizer.encode(text.strip()))
        if len(ids) > self.source_max_len:
            raise UserError(
                f"the source {quoted(text)} has {len(ids)} tokens and the model reads at most "
                f"{self.source_max_len}: split it, or train with a larger model.source_max_len"
            )
        if not ids:
            raise UserError("the source is empty, and this tokenizer has no end token that could stand for it")
        return ids

    def translate(
        self,
        sources: Sequence[str],
        config: BeamConfig,
        *,
        n_best: int = 1,
        prefix: str = "",
        progress: Callable[[int, int], None] | None = None,
        takes: Callable[[int], bool] | None = None,
    ) -> list[list[Translation]]:
        """The `n_best` targets of every source, best first; each begins with `prefix`.

        Where `takes` is given, only the sources of batches that it takes by their number have targets.
        """
        encoded = [self.source_ids(source) for source in sources]
        return self.translate_ids(encoded, config, n_best=n_best, prefix=prefix, progress=progress, takes=takes)

    def translate_ids(
        self,
        sources: Sequence[Sequence[int]],
        config: BeamConfig,
        *,
        n_best: int = 1,
        prefix: str = "",
        progress: Callable[[int, int], None] | None = None,
        takes: Callable[[int], bool] | None = None,
    ) -> list[list[Translation]]:
        """`translate` of sources that are encoded already (`source_ids`)."""
        found = decode_sorted(
            self.model,
            sources,
            config,
            start_id=self.start_id,
            end_id=self.end_id,
            max_len=self.max_len,
            n_best=n_best,
            prefix=[*self.tokenizer.frames.target.before, *self.tokenizer.encode(prefix)],
            suppress_ids=[i for i in never_written(self.tokenizer, self.vocab_size) if i != self.end_id],
            device=self.device,
            progress=progress,
            takes=takes,
        )
        return [[Translation(self.tokenizer.decode(h.ids), h) for h in of_source] for of_source in found]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Score]:
        """log p of each target, its end included, given its source.

        Space around both is left out, as it is where pairs are read for training.
        """
        targets = [target.strip() for target in targets]
        around = self.tokenizer.frames.target.around
        targets_ids = [around(self.tokenizer.encode(target)) for target in targets]
        for target, ids in zip(targets, targets_ids, strict=True):
            if len(ids) > self.max_len:
                raise UserError(
                    f"the target {quoted(target)} has {len(ids)} tokens and the model writes at most {self.max_len}"
                )
        scores = forced_scores(
            self.model,
            [self.source_ids(source) for source in sources],
            targets_ids,
            start_id=self.start_id,
            device=self.device,
        )
        return [
            Score(float(score.log_prob), len(ids), len(target.encode("utf-8")))
            for score, ids, target in zip(scores, targets_ids, targets, strict=True)
        ]
