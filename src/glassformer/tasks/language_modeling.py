"""Causal language modelling: predict each token of a text from the tokens before it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from glassformer.config.run import CausalConfig, GenerationConfig, Run
from glassformer.config.transformer import TokenHead
from glassformer.data.batching import Example
from glassformer.errors import Log, UserError
from glassformer.inference.decode import (
    EncodedPrompt,
    RowGenerator,
    causal_frame,
    finished_texts,
    generate_rows,
    stream_texts,
)
from glassformer.inference.score import Score, text_scores
from glassformer.inference.speculative import Drafter, ModelDrafter, PromptLookup, generate_speculative
from glassformer.models.build import Network
from glassformer.objectives.causal import CausalObjective
from glassformer.tasks.model_parts import ModelParts
from glassformer.tasks.task import Continuation, ContinuesPrompts, Prompt
from glassformer.tasks.text_data import TextObjective, TextTask
from glassformer.tokenization.tokenizer import Tokenizer

SAMPLE_PROMPT, SAMPLE_LENGTH = 16, 64


class LanguageModeling(TextTask, ContinuesPrompts):
    """Causal language modelling: a decoder without an encoder continues a text."""

    settings = CausalConfig
    verb = "generate"
    unit = "token"
    predicts_next = True
    has_encoder, has_decoder = False, True
    needs = "causal language modelling needs a Transformer with only [model.decoder]"

    def learned(self, run: Run) -> str:
        return "continue a text"

    def example(self, run: Run) -> str:
        return '"…"'

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
        steps = stream_texts(network, tokenizer, [EncodedPrompt(prompt)], config, slide=False, device=device)
        return "".join([tokenizer.decode(prompt), "│", *(piece for (piece,) in steps)])

    # Use

    def writer(self, model: ModelParts) -> ContinuesPrompts:
        return self

    def scorer(self, model: ModelParts) -> "TextScorer":
        return TextScorer(model, self)

    def stream(self, model: ModelParts, prompts: Sequence[EncodedPrompt], options: Continuation) -> Iterator[list[str]]:
        return stream_texts(
            model.network,
            model.tokenizer,
            prompts,
            options.config,
            slide=options.slide,
            device=model.device,
            samples=options.samples,
            generator=generator_for(model, options),
        )

    def finished(
        self, model: ModelParts, prompts: Sequence[EncodedPrompt], options: Continuation, batch_size: int
    ) -> Iterator[tuple[int, str]]:
        return finished_texts(
            model.network,
            model.tokenizer,
            prompts,
            options.config,
            slide=options.slide,
            device=model.device,
            samples=options.samples,
            generator=generator_for(model, options),
            batch_size=batch_size,
        )

    def encode_prompt(self, model: ModelParts, prompt: Prompt, special_tokens: bool = False) -> EncodedPrompt:
        tokenizer, before = model.tokenizer, list(causal_frame(model.tokenizer, model.network.config).before)
        if isinstance(prompt, str):
            ids = tokenizer.encode(prompt, allow_special=tokenizer.special_tokens if special_tokens else ())
            has_start = special_tokens and ids[: len(before)] == before  # a chat template writes the start token, too
            ids = ids if has_start else before + ids
        else:
            ids = list(prompt) or before
        if not ids:
            raise UserError(
                f"the prompt is empty, and {model.name} was not trained to start a text (no start token is recorded): "
                "give a prompt of at least one token"
            )
        is_spaced = isinstance(prompt, str) and prompt[-1:].isspace() and not tokenizer.decode(ids)[-1:].isspace()
        return EncodedPrompt(ids, is_spaced)

    def no_start(self, model: ModelParts) -> str:
        return f"{model.name} was not trained to start a text: the first token of each text is read and not scored"

    def adopt(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        return run if self.has_its_stacks(run.model) and isinstance(run.model.head, TokenHead) else None


@dataclass(frozen=True)
class TextScorer:
    """Scorer of texts, alone or after a context, by a causal language model."""

    model: ModelParts
    task: LanguageModeling

    def score(self, texts: Sequence[str], targets: Sequence[str] | None, log: Log) -> list[Score]:
        model = self.model
        start = causal_frame(model.tokenizer, model.network.config).before
        if not start and texts and (targets is None or not all(texts)):
            log(self.task.no_start(model))
        network, max_len = model.network, model.network.config.max_len
        return text_scores(network, model.tokenizer, texts, targets, start=start, max_len=max_len, device=model.device)


def generator_for(model: ModelParts, options: Continuation) -> RowGenerator:
    """Return the function that generates ids: `generate_speculative` with drafts, otherwise `generate_rows`."""
    drafter = drafter_for(model, options)
    return generate_rows if drafter is None else partial(generate_speculative, drafter=drafter)


def drafter_for(model: ModelParts, options: Continuation) -> Drafter | None:
    """Return what proposes tokens in a generation: the draft model, or prompt lookup; `None` if both are off.

    Raises `UserError` if both are on, or if the draft model has another vocabulary.
    """
    config, draft, counts = options.config, options.draft, options.counts
    if draft is None:
        return PromptLookup(config.prompt_lookup, counts) if config.prompt_lookup else None
    if config.prompt_lookup:
        raise UserError(
            f"a draft model is given, and prompt_lookup is {config.prompt_lookup}: use one of them "
            "(prompt_lookup = 0 is off)"
        )
    sizes = draft.network.config.vocab_size, model.network.config.vocab_size
    if sizes[0] != sizes[1] or draft.tokenizer.vocab != model.tokenizer.vocab:
        raise UserError(
            f"the draft model {draft.name} and {model.name} have different vocabularies ({sizes[0]:,} and {sizes[1]:,} "
            "tokens): use a draft model that was trained with the same tokenizer"
        )
    max_len = draft.network.config.max_len
    return ModelDrafter(draft.network, config.draft_tokens, max_len=max_len, device=draft.device, counts=counts)


def unscored_start(run: Run, tokenizer: Tokenizer) -> int | None:
    """Return the id that begins a document and is not a target; `None` if this token also ends documents."""
    start = run.model.decoder_start_id
    return None if start == tokenizer.eos_id else start


TASK = LanguageModeling()
