"""Writing with a causal language model: prompts as ids, and the text of a generation."""

import itertools
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from glassformer.common.errors import Log, UserError, warn
from glassformer.config.run import GENERATION_BATCH, BeamConfig, GenerationConfig
from glassformer.inference.beam import Search, continue_prompts
from glassformer.inference.drafts import (
    DraftCounts,
    Drafter,
    ModelDrafter,
    PromptLookup,
    Reader,
    Vocabulary,
    check_draft,
)
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.score import Score, text_scores
from glassformer.inference.text import EncodedPrompt, RowText, causal_frame, check_ids, end_ids_of, never_written
from glassformer.inference.translator import Translation
from glassformer.models.build import Network
from glassformer.tokenization.tokenizer import Tokenizer


class Writer:
    """Writer: a causal language model that continues texts, with its tokenizer."""

    def __init__(
        self, network: Network, tokenizer: Tokenizer, device: torch.device | str = "cpu", name: str = "the model"
    ) -> None:
        self.network, self.tokenizer, self.device, self.name = network, tokenizer, device, name
        self.max_len = network.config.max_len
        self.vocabulary = Vocabulary(name, network.config.vocab_size, tokenizer)
        self.before = list(causal_frame(tokenizer, network.config).before)
        """The ids that the model reads before a text, as in its training."""

    @property
    def no_start(self) -> str:
        """Warning for a model that was trained without start tokens."""
        return f"{self.name} was not trained to start a text: the first token of each text is read and not scored"

    def encode(self, prompt: str | Sequence[int], special_tokens: bool = False) -> EncodedPrompt:
        """Return the ids that the model reads: a text after its start tokens, or the given ids unchanged.

        With `special_tokens`, special tokens written in the text are read as such.
        """
        is_spaced = False
        if isinstance(prompt, str):
            allowed = self.tokenizer.special_tokens if special_tokens else ()
            ids = self.after_start(self.tokenizer.encode(prompt, allow_special=allowed), special_tokens)
            is_spaced = prompt[-1:].isspace() and not self.tokenizer.decode(ids)[-1:].isspace()
        else:
            ids = list(prompt) or self.before
        if not ids:
            raise UserError(
                f"the prompt is empty, and {self.name} was not trained to start a text (no start token is recorded): "
                "give a prompt of at least one token"
            )
        return EncodedPrompt(ids, is_spaced)

    def after_start(self, ids: list[int], special_tokens: bool) -> list[int]:
        """Return the ids of a text after the start tokens; with `special_tokens`, the text may begin with them."""
        has_start = special_tokens and ids[: len(self.before)] == self.before  # a chat template writes them, too
        return ids if has_start else self.before + ids

    def settings(
        self,
        sampling: GenerationConfig,
        *,
        samples: Sequence[int] = (0,),
        slide: bool = False,
        further_ends: Collection[int] = (),
    ) -> Settings:
        """Return the settings of a generation of texts; `further_ends` end a text, too.

        Raises `UserError` for several samples at temperature 0.
        """
        if len(samples) > 1 and sampling.temperature == 0:
            raise UserError(
                f"n is {len(samples)} and temperature is 0: all samples would be equal; set a temperature above 0, or "
                "n = 1"
            )
        ends = end_ids_of(self.tokenizer, self.network.config, sampling).union(further_ends)
        suppress_ids = never_written(self.tokenizer, self.network.config.vocab_size, but=ends)
        return Settings(sampling, self.max_len, ends, suppress_ids, slide, samples, device=self.device)

    def stream(
        self,
        prompts: Sequence[EncodedPrompt],
        settings: Settings,
        drafter: Drafter | None = None,
        reader: Reader | None = None,
    ) -> Iterator[list[str]]:
        """Yield the new text of every row per step, and at the end the text that was held back.

        Each prompt has one row per sample (`Generation`); the text of a row is that of `RowText`.
        """
        rows = [RowText(self.tokenizer, prompt, settings) for prompt in prompts for _ in settings.samples]
        generation = self._generation(prompts, settings, drafter, reader)
        for step in generation:
            pieces = [""] * len(rows)
            for number, token in step.items():
                pieces[number] = rows[number].push(token)
                if rows[number].is_stopped:
                    generation.end(number)
            yield pieces
        yield [row.flush() for row in rows]

    def finished(
        self, prompts: Sequence[EncodedPrompt], settings: Settings, drafter: Drafter | None = None
    ) -> Iterator[tuple[int, str]]:
        """Yield the number and the new text of each row when the row has ended; the texts are those of `stream`."""
        live: dict[int, tuple[RowText, list[str]]] = {}
        empty = set(range(len(prompts) * len(settings.samples)))  # rows without an id
        generation = self._generation(prompts, settings, drafter)
        for step in itertools.chain(generation, ({},)):
            for number in [number for number in live if number not in step]:
                row, pieces = live.pop(number)
                yield number, "".join([*pieces, row.flush()])
            for number, token in step.items():
                if number in empty:
                    empty.remove(number)
                    prompt = prompts[number // len(settings.samples)]
                    live[number] = RowText(self.tokenizer, prompt, settings), []
                row, pieces = live[number]
                pieces.append(row.push(token))
                if row.is_stopped:
                    generation.end(number)
        yield from ((number, "") for number in sorted(empty))

    def _generation(
        self,
        prompts: Sequence[EncodedPrompt],
        settings: Settings,
        drafter: Drafter | None,
        reader: Reader | None = None,
    ) -> Generation:
        ids = [prompt.ids for prompt in prompts]
        check_ids(ids, min(self.tokenizer.vocab_size, self.network.config.vocab_size))
        return Generation(self.network, ids, settings, drafter=drafter, reader=reader)

    def continued(
        self,
        prompts: Sequence[EncodedPrompt],
        sampling: GenerationConfig,
        config: BeamConfig,
        n: int = 1,
        batch_size: int = GENERATION_BATCH,
    ) -> Iterator[list[Translation]]:
        """Yield the `n` best continuations of each prompt by beam search, best first.

        A text ends before a stop text of `sampling`. At most `batch_size` rows (prompts × beam) are searched at a time,
        or one prompt.
        """
        settings = self.settings(sampling)
        ends = tuple(sorted(settings.ends))
        search = Search(replace(config, end_ids=ends), None, None, self.max_len, n, settings.suppress_ids)
        size = max(1, batch_size // config.beam)
        for begin in range(0, len(prompts), size):
            batch = prompts[begin : begin + size]
            ids = [prompt.ids for prompt in batch]
            check_ids(ids, min(self.tokenizer.vocab_size, self.network.config.vocab_size))
            found = continue_prompts(self.network, ids, search, self.device)
            for prompt, hypotheses in zip(batch, found, strict=True):
                yield [Translation(self._text(prompt, h.ids, settings), h) for h in hypotheses]

    def _text(self, prompt: EncodedPrompt, ids: Sequence[int], settings: Settings) -> str:
        text = RowText(self.tokenizer, prompt, settings)
        pieces = [text.push(token) for token in ids]
        return "".join([*pieces, text.flush()])

    def drafter(
        self, sampling: GenerationConfig, draft: "Writer | None" = None, counts: DraftCounts | None = None
    ) -> Drafter | None:
        """Return what proposes tokens in one generation: the draft model, or prompt lookup; `None` if both are off.

        Raises `UserError` if both are on, or if the draft model has another vocabulary.
        """
        if draft is None:
            return PromptLookup(sampling.prompt_lookup, counts) if sampling.prompt_lookup else None
        check_draft(sampling.prompt_lookup, draft.vocabulary, self.vocabulary)
        n_tokens, max_len = sampling.draft_tokens, draft.max_len
        return ModelDrafter(draft.network, n_tokens, max_len=max_len, device=draft.device, counts=counts)

    def score(self, texts: Sequence[str], targets: Sequence[str] | None = None, log: Log = warn) -> list[Score]:
        """Return log p of each text, or, with `targets`, of each target as the continuation of its text.

        `log` receives a note if first tokens are not scored (`no_start`).
        """
        if not self.before and texts and (targets is None or not all(texts)):
            log(self.no_start)
        return text_scores(self.network, self.tokenizer, texts, targets, start=self.before, device=self.device)


def beam_settings(defaults: GenerationConfig, settings: Mapping[str, Any]) -> tuple[GenerationConfig, BeamConfig]:
    """Return the settings of a beam search of a language model, and those of its texts, with `settings` replaced.

    What both searches and samples have is by default that of the model. Raises `UserError` for settings of samples.

    >>> _, config = beam_settings(GenerationConfig(temperature=0.5, max_new_tokens=9), {"beam": 2, "stop": "."})
    >>> config.beam, config.max_new_tokens
    (2, 9)
    """
    of_beams, of_samples = ({field.name for field in fields(cls)} for cls in (BeamConfig, GenerationConfig))
    both = of_beams & of_samples
    for name in sorted(settings.keys() & (of_samples | {"sample", "slide", "draft", "counts"}) - both - {"stop"}):
        raise UserError(f"{name} is for samples, and beam asks for a search: leave one out")
    given = {name: value for name, value in settings.items() if name in both or name == "stop"}
    texts = with_settings(defaults, given)
    shared = {name: getattr(texts, name) for name in both}
    return texts, BeamConfig(**shared | {name: value for name, value in settings.items() if name != "stop"})


def with_settings(config: GenerationConfig, settings: Mapping[str, Any]) -> GenerationConfig:
    """Replace settings of a configuration: `stop` may be a single text, and `seed` None draws a new seed."""
    changes = dict(settings)
    if isinstance(changes.get("stop"), str):
        changes["stop"] = (changes["stop"],)
    if changes.get("seed", 0) is None:
        changes["seed"] = secrets.randbits(32)
    return replace(config, **changes)
