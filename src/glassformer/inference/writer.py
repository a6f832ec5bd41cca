"""Writing with a causal language model: prompts as ids, and the text of a generation."""

import itertools
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from glassformer.common.errors import Log, UserError, warn
from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.inference.drafts import DraftCounts, Drafter, ModelDrafter, PromptLookup, Reader
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.score import Score, text_scores
from glassformer.inference.text import EncodedPrompt, StopWatch, causal_frame, check_ids, end_ids_of, never_written
from glassformer.models.build import Network
from glassformer.tokenization.tokenizer import Tokenizer


class Writer:
    """Writer: a causal language model that continues texts, with its tokenizer."""

    def __init__(
        self,
        network: Network,
        tokenizer: Tokenizer,
        device: torch.device | str = "cpu",
        name: str = "the model",
        generation: GenerationConfig | BeamConfig | None = None,
    ) -> None:
        """Set the model, its name in messages, and the default settings of its samples (`generation`)."""
        self.network, self.tokenizer, self.device, self.name = network, tokenizer, device, name
        self.max_len = network.config.max_len
        self.defaults = generation if isinstance(generation, GenerationConfig) else GenerationConfig()
        self.before = list(causal_frame(tokenizer, network.config).before)
        """The ids that the model reads before a text, as in its training."""

    @property
    def no_start(self) -> str:
        """Warning for a model that was trained without start tokens."""
        return f"{self.name} was not trained to start a text: the first token of each text is read and not scored"

    def encode(self, prompt: str | Sequence[int], special_tokens: bool = False) -> EncodedPrompt:
        """Return the ids that the model reads: a text after its start tokens, or the given ids unchanged.

        With `special_tokens`, the names of special tokens in the text are read as special tokens.
        """
        # 1. The ids of a text, after the start tokens of training
        is_spaced = False
        if isinstance(prompt, str):
            allowed = self.tokenizer.special_tokens if special_tokens else ()
            ids = self.tokenizer.encode(prompt, allow_special=allowed)
            has_start = special_tokens and ids[: len(self.before)] == self.before  # a chat template writes them, too
            ids = ids if has_start else self.before + ids
            is_spaced = prompt[-1:].isspace() and not self.tokenizer.decode(ids)[-1:].isspace()
        else:
            ids = list(prompt) or self.before

        # 2. Without any id, the model has nothing to continue
        if not ids:
            raise UserError(
                f"the prompt is empty, and {self.name} was not trained to start a text (no start token is recorded): "
                "give a prompt of at least one token"
            )
        return EncodedPrompt(ids, is_spaced)

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

        Each prompt has one row per sample (`Generation`). `RowText` makes the text of a row.
        """
        rows = [RowText(self.tokenizer, prompt, settings) for prompt in prompts for _ in settings.samples]
        generation = Generation(self.network, self.known_ids(prompts), settings, drafter=drafter, reader=reader)
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
        """Yield the number and the whole new text of each row when the row has ended; `stream` has the same texts."""
        live: dict[int, tuple[RowText, list[str]]] = {}
        empty = set(range(len(prompts) * len(settings.samples)))  # rows without an id
        generation = Generation(self.network, self.known_ids(prompts), settings, drafter=drafter)
        for step in itertools.chain(generation, ({},)):
            for number in [number for number in live if number not in step]:  # a row without a new id has ended
                row, pieces = live.pop(number)
                yield number, "".join([*pieces, row.flush()])
            for number, token in step.items():
                if number in empty:
                    empty.remove(number)
                    live[number] = RowText(self.tokenizer, prompts[number // len(settings.samples)], settings), []
                row, pieces = live[number]
                pieces.append(row.push(token))
                if row.is_stopped:
                    generation.end(number)
        yield from ((number, "") for number in sorted(empty))

    def known_ids(self, prompts: Sequence[EncodedPrompt]) -> list[list[int]]:
        """Return the ids of prompts; raise `UserError` for an id that is not in the vocabulary."""
        ids = [prompt.ids for prompt in prompts]
        check_ids(ids, min(self.tokenizer.vocab_size, self.network.config.vocab_size))
        return ids

    def drafter(
        self, sampling: GenerationConfig, draft: "Writer | None" = None, counts: DraftCounts | None = None
    ) -> Drafter | None:
        """Return the drafter of one generation: a draft model, or prompt lookup; `None` if both are off.

        Raises `UserError` if both are on, or if the draft model has another vocabulary.
        """
        if draft is None:
            return PromptLookup(sampling.prompt_lookup, counts) if sampling.prompt_lookup else None
        if sampling.prompt_lookup:
            raise UserError(
                f"a draft model is given, and prompt_lookup is {sampling.prompt_lookup}: use one of them "
                "(prompt_lookup = 0 is off)"
            )
        size, own_size = draft.network.config.vocab_size, self.network.config.vocab_size
        if size != own_size or draft.tokenizer.vocab != self.tokenizer.vocab:
            raise UserError(
                f"the draft model {draft.name} and {self.name} have different vocabularies ({size:,} and "
                f"{own_size:,} tokens): use a draft model that was trained with the same tokenizer"
            )
        return ModelDrafter(
            draft.network, sampling.draft_tokens, max_len=draft.max_len, device=draft.device, counts=counts
        )

    def score(self, texts: Sequence[str], targets: Sequence[str] | None = None, log: Log = warn) -> list[Score]:
        """Return log p of each text, or, with `targets`, of each target as the continuation of its text.

        `log` receives a note if first tokens are not scored (`no_start`).
        """
        if not self.before and texts and (targets is None or not all(texts)):
            log(self.no_start)
        return text_scores(self.network, self.tokenizer, texts, targets, start=self.before, device=self.device)


class RowText:
    """Text generated after a prompt, id by id.

    The text of the prompt and the new pieces together are the text of all ids. If a space separates prompt and pieces,
    the first piece begins with the space, unless the prompt `is_spaced`. An incomplete character, and text that may
    become a stop text, wait for later ids. End ids have no text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: EncodedPrompt, settings: Settings) -> None:
        self._stream, self._watch = tokenizer.stream(after=prompt.ids), StopWatch(settings.sampling.stop)
        self._ends = settings.ends
        self._drops_space = prompt.is_spaced  # until the first text is generated
        self.n_characters = 0
        """Number of characters so far, including text that waits and a stop text."""

    @property
    def is_stopped(self) -> bool:
        """True if a stop text has appeared."""
        return self._watch.stopped

    def push(self, token: int) -> str:
        """Read the next id; return the text that no longer waits."""
        if token in self._ends:
            return ""
        text = self._stream.push(token)
        if text and self._drops_space:
            text, self._drops_space = text.removeprefix(" "), False
        self.n_characters += len(text)
        return self._watch.push(text)

    def flush(self) -> str:
        """Return the text that was held back, at the end of the row."""
        if self.is_stopped:
            return ""
        return self._watch.push(self._stream.flush()) + self._watch.flush()

    def whole(self, ids: Sequence[int]) -> str:
        """Return the text of all ids of a row."""
        return "".join([*map(self.push, ids), self.flush()])


def with_settings(config: GenerationConfig, settings: Mapping[str, Any]) -> GenerationConfig:
    """Replace settings of a configuration: `stop` may be a single text, and `seed` None draws a new seed."""
    changes = dict(settings)
    if isinstance(changes.get("stop"), str):
        changes["stop"] = (changes["stop"],)
    if changes.get("seed", 0) is None:
        changes["seed"] = secrets.randbits(32)
    return replace(config, **changes)
