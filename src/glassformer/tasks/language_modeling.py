"""Causal language modelling: predict each token of a text from the tokens before it."""

from collections.abc import Sequence

import torch

from glassformer.config.run import CausalConfig, GenerationConfig, Run
from glassformer.config.transformer import TokenHead
from glassformer.data.batching import Example
from glassformer.inference.text import EncodedPrompt
from glassformer.inference.writer import Writer
from glassformer.models.build import Network
from glassformer.objectives.causal import CausalObjective
from glassformer.tasks.requirements import BUILT_IN, CAUSAL_TEXT
from glassformer.tasks.task import ModelParts
from glassformer.tasks.text_data import TextObjective, TextTask
from glassformer.tokenization.tokenizer import Tokenizer

SAMPLE_PROMPT, SAMPLE_LENGTH = 16, 64


class LanguageModeling(TextTask):
    """Causal language modelling: a decoder without an encoder continues a text."""

    settings = CausalConfig
    facts = BUILT_IN["causal"]
    unit = "token"
    requires = CAUSAL_TEXT

    def metrics(self, run: Run) -> tuple[str, ...]:
        return ("bits_per_byte", "perplexity")

    # Training

    def text_objective(self, run: Run, tokenizer: Tokenizer, context: int) -> TextObjective:
        objective = CausalObjective(run.objective.label_smoothing, unscored_start(run, tokenizer))
        return TextObjective(objective, context + 1, overlap=1)

    def sample(self, network: Network, tokenizer: Tokenizer, run: Run, row: Example, device: torch.device) -> str:
        """Return the beginning of the row and the model's continuation."""
        n_prompt = max(1, min(SAMPLE_PROMPT, (run.data.context or run.model.max_len) // 4))  # type: ignore[union-attr]
        prompt = row.token_ids[:n_prompt].tolist()
        length = max(1, min(SAMPLE_LENGTH, run.model.max_len - n_prompt))
        config = GenerationConfig(max_new_tokens=length, temperature=0.8, top_k=50, seed=run.train.seed)
        writer = Writer(network, tokenizer, device)
        steps = writer.stream([EncodedPrompt(prompt)], writer.settings(config))
        return "".join([tokenizer.decode(prompt), "│", *(piece for (piece,) in steps)])

    # Use

    def writer(self, model: ModelParts) -> Writer:
        return Writer(model.network, model.tokenizer, model.device, model.name, model.generation)

    def adopt(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        if not self.requires.has_its_stacks(run.model) or not isinstance(run.model.head, TokenHead):
            return None
        return run


def unscored_start(run: Run, tokenizer: Tokenizer) -> int | None:
    """Return the id that begins a document and is not a target; `None` if this token also ends documents."""
    start = run.model.decoder_start_id
    return None if start == tokenizer.eos_id else start


TASK = LanguageModeling()
