"""Masked language modelling: predict masked tokens from all tokens around them (Devlin 2019)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from glassformer.common.errors import Log, Progress, UserError
from glassformer.config.run import MaskedConfig, Run
from glassformer.config.transformer import TokenHead
from glassformer.data.batching import Example
from glassformer.evaluation import loss
from glassformer.inference.fill import MaskFiller
from glassformer.models.build import Network
from glassformer.objectives.masked import MaskedObjective
from glassformer.objectives.noise import MASKED
from glassformer.tasks.batches import Places
from glassformer.tasks.requirements import BUILT_IN, MASKED_TEXT
from glassformer.tasks.task import ModelParts
from glassformer.tasks.text_data import TextObjective, TextTask, sample_of_filling
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.tokenization.word_boundaries import word_boundaries


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
        n_masked = int(data.n_targets * data.objective.mask_prob * MASKED)
        report = (lambda done: progress(done, n_masked)) if progress else None
        return asdict(loss.masked_scores(model.network, data.objective, data.batches(), model.device, report))

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


TASK = MaskedLanguageModeling()
