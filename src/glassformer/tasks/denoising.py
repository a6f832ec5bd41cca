"""Tasks that restore a corrupted text: text infilling (BART), span corruption (T5) and masked tokens (BERT)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from glassformer.common.errors import Log, Progress, UserError
from glassformer.config.run import BeamConfig, InfillingConfig, MaskedConfig, Run, SpansConfig
from glassformer.config.transformer import TokenHead
from glassformer.data.batching import Example
from glassformer.evaluation import loss
from glassformer.inference.fill import MaskFiller, WritingFiller
from glassformer.inference.translator import Translator
from glassformer.models.build import Network
from glassformer.objectives.noise import MASKED_SHARE, MaskedObjective, corrupt_spans, infill, permute_sentences
from glassformer.objectives.seq2seq import DenoisingObjective, Ids, Noise, objective_of
from glassformer.tasks.batches import Places
from glassformer.tasks.requirements import BUILT_IN, DENOISED_TEXT, MASKED_TEXT
from glassformer.tasks.task import ModelParts
from glassformer.tasks.text_data import TextObjective, TextTask, sample_of_filling
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from glassformer.tokenization.vocabulary import sentinel_ids, sentinels, word_boundaries

GREEDY = BeamConfig(beam=1, max_ratio=2.0)
"""Greedy search for the samples shown during training."""


class Denoising(TextTask):
    """The denoising tasks, which differ in their noise and in how they encode a mask in the user's text."""

    facts = BUILT_IN["spans"]
    unit = "token"
    requires = DENOISED_TEXT

    def __init__(
        self,
        settings: type[InfillingConfig] | type[SpansConfig],
        special_tokens: Callable[[Any], tuple[str, ...]],
        noise: Callable[[Run, Tokenizer], Noise],
        sentinels: Callable[[Tokenizer], Sequence[int]],
    ) -> None:
        """Create a task; `sentinels` returns the ids that take the place of masks, or no ids if the mask token does."""
        self.settings, self._special_tokens, self._noise = settings, special_tokens, noise
        self._sentinels = sentinels

    def adapted(self, run: Run, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer.with_special_tokens(self._special_tokens(run.objective))

    def metrics(self, run: Run) -> tuple[str, ...]:
        return ("perplexity",)

    # Training

    def text_objective(self, run: Run, tokenizer: Tokenizer, context: int) -> TextObjective:
        pairs = objective_of(run.model, Tokenizers(tokenizer), run.objective.label_smoothing)
        n_added = max(pairs.source_frame.n_added, pairs.target_frame.n_added)
        objective = DenoisingObjective(self._noise(run, tokenizer), pairs)
        return TextObjective(objective, context - n_added, changes_lengths=True)

    def sample(self, network: Network, tokenizer: Tokenizer, run: Run, row: Example, device: torch.device) -> str:
        sentinels = self._sentinels(tokenizer)
        translator = Translator(network, Tokenizers(tokenizer), device, GREEDY)
        return sample_of_filling(WritingFiller(translator, sentinels), run, row)

    # Use

    def translator(self, model: ModelParts) -> Translator:
        return Translator(model.network, model.tokenizers, model.device, model.generation, model.name)

    def filler(self, model: ModelParts) -> WritingFiller:
        return WritingFiller(self.translator(model), self._sentinels(model.tokenizer))

    def adopt(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        """Accept an encoder-decoder with sentinel tokens (T5): it fills spans, and it can also translate."""
        n = len(sentinel_ids(tokenizer))
        if self.settings is not SpansConfig or n < 2 or not run.model.is_encoder_decoder:
            return None
        return replace(run, objective=SpansConfig(n_sentinels=n))


def infilling_noise(run: Run, tokenizer: Tokenizer) -> Noise:
    """Return noise that replaces spans by masks and may permute sentences; the target is the text (Lewis 2020)."""
    config, mask_id = run.objective, tokenizer.mask_id
    assert isinstance(config, InfillingConfig) and mask_id is not None
    edges = word_boundaries(tokenizer)

    def noise(ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        source = ids
        if config.permute_sentences:
            source = permute_sentences(source, rng, ends_sentence=edges.ends_sentence[source])
        return infill(source, rng, mask_id=mask_id), ids

    return noise


def span_noise(run: Run, tokenizer: Tokenizer) -> Noise:
    """Return noise that replaces spans by sentinels; the target consists of the spans (Raffel 2020)."""
    return partial(corrupt_spans, sentinel_ids=sentinel_ids(tokenizer))


INFILLING = Denoising(InfillingConfig, lambda _: ("[MASK]", "[EOS]"), infilling_noise, lambda _: ())
SPANS = Denoising(SpansConfig, lambda config: ("[EOS]", *sentinels(config.n_sentinels)), span_noise, sentinel_ids)


class MaskedLanguageModeling(TextTask):
    """Masked language modelling: an encoder without a decoder predicts masked tokens."""

    settings = MaskedConfig
    facts = BUILT_IN["masked"]
    unit = "chosen token"
    requires = MASKED_TEXT

    def adapted(self, run: Run, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer.with_special_tokens(["[MASK]"])

    def metrics(self, run: Run) -> tuple[str, ...]:
        return ("masked_accuracy", "perplexity")

    # Training

    def scored_share(self, run: Run) -> float:
        return self._config(run).mask_prob

    def text_objective(self, run: Run, tokenizer: Tokenizer, context: int) -> TextObjective:
        config = self._config(run)
        mask = tokenizer.mask_id
        assert mask is not None  # adapted
        if config.whole_words and tokenizer.scheme == "whitespace":
            raise UserError(
                "objective.whole_words: tokens of a whitespace tokenizer do not mark word boundaries; use another "
                "tokenizer.scheme, or leave the setting out"
            )
        frame, edges = tokenizer.frames.text, word_boundaries(tokenizer)
        objective = MaskedObjective(mask, edges, config.mask_prob, config.whole_words, frame, config.label_smoothing)
        return TextObjective(objective, context - frame.n_added)

    def sample(self, network: Network, tokenizer: Tokenizer, run: Run, row: Example, device: torch.device) -> str:
        return sample_of_filling(MaskFiller(network, tokenizer, device), run, row)

    def _config(self, run: Run) -> MaskedConfig:
        assert isinstance(run.objective, MaskedConfig)
        return run.objective

    # Use

    def scores(
        self, model: ModelParts, places: Places, progress: Progress | None, log: Log, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the accuracy on masked tokens and the frequency of the most frequent token, in percent."""
        data = self.evaluation(model, places, log)
        assert isinstance(data.objective, MaskedObjective)
        n_masked = int(data.n_targets * data.objective.mask_prob * MASKED_SHARE)
        report = (lambda done: progress(done, n_masked)) if progress else None
        return dict(loss.masked_scores(model.network, data.objective, data.batches(), model.device, report))

    def pseudo_perplexity(self, model: ModelParts, places: Places, progress: Progress | None, log: Log) -> float:
        """Return exp of the mean -log p of each token given all others, with one forward pass per token."""
        data = self.evaluation(model, places, log)
        assert isinstance(data.objective, MaskedObjective)
        report = (lambda done: progress(done, data.n_targets)) if progress else None
        return loss.pseudo_perplexity(model.network, data.objective, data.batches(), model.device, report)

    def filler(self, model: ModelParts) -> MaskFiller:
        return MaskFiller(model.network, model.tokenizer, model.device)

    def adopt(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        if not self.requires.has_its_stacks(run.model) or not isinstance(run.model.head, TokenHead):
            return None
        return replace(run, objective=MaskedConfig())


MASKED = MaskedLanguageModeling()
