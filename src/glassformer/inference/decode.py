"""Generation with a cache, greedy or sampled, for many prompts at once: `start` once, then `step` per token."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import GenerationConfig
from glassformer.data.batching import pad
from glassformer.errors import UserError
from glassformer.inference.decodable import Decodable
from glassformer.inference.sampling import choose, shape_logits
from glassformer.models.build import Network
from glassformer.nn.linear_layers import PackedWeights
from glassformer.seeds import Stream, rng
from glassformer.tokenization.special_tokens_template import Frame
from glassformer.tokenization.tokenizer import Tokenizer

SourceBatch = tuple[Tensor, Tensor | None]
"""Source ids (B, S) and their mask (B, S), True = real; `None` instead of the mask if all are real."""

PREFILL = 256
"""Number of prompt tokens read at once: limits the memory of their logits, of which only the last per row are used."""


def generate(
    model: Decodable,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    max_len: int,
    end_ids: Sequence[int] = (),
    suppress_ids: Sequence[int] = (),
    slide: bool = False,
    device: torch.device | str = "cpu",
    is_finished: Callable[[int, int], bool] | None = None,
    source: SourceBatch | None = None,
    samples: Sequence[int] = (0,),
) -> Iterator[list[int | None]]:
    """Yield per step the new id of every row, or None for a row that has ended.

    Each prompt has one row per item of `samples` (their numbers); all rows of the first prompt come first. A row ends
    with one of `end_ids` (which is yielded), if `is_finished(row, id)` returns True, after `config.max_new_tokens`, or
    when the model's context `max_len` is full. With `slide`, a full row continues: the older half of its context is
    dropped and the rest is read again. `is_finished` is called after the step with that id was yielded. Ids in
    `suppress_ids` are never chosen.

    With a `source` (ids and their mask), prompts are beginnings of targets: the decoder's start id, then forced ids.

    Sample i draws from stream `SAMPLES` of `seeds.py`, for every prompt. A row of a batch therefore gets the same ids
    as alone, and equal prompts get equal texts; use more samples to get different texts. Raises `UserError` for an
    empty prompt, for a prompt longer than the context unless `slide`, and for several samples at temperature 0.
    """
    check_samples(samples, config)
    if slide and source is not None:
        raise ValueError("slide: expected False with a source, because the beginning of a target cannot be dropped")
    check_prompts(prompts, max_len, slide)
    if not prompts:
        return

    def read(contexts: Sequence[Sequence[int]], n_new: int) -> tuple[Tensor, Any]:
        return read_prompts(model, contexts, min(max_len, max(map(len, contexts)) + n_new), device, source)

    histories = [list(prompt) for prompt in prompts for _ in samples]
    begins = [max(0, len(history) - max_len) for history in histories]  # start of each row's context
    draws = [rng(config.seed, Stream.SAMPLES, sample) for _ in prompts for sample in samples]
    rows = list(range(len(histories)))  # row of the state → row of all
    packed = PackedWeights()
    with packed:
        logits, state = read([prompt[-max_len:] for prompt in prompts], config.max_new_tokens)
    if len(samples) > 1:  # read a prompt once for all of its samples
        of_prompts = torch.arange(len(prompts), device=device).repeat_interleave(len(samples))
        logits, state = logits[of_prompts], state.select(of_prompts)
    banned = torch.tensor(list(suppress_ids), dtype=torch.long, device=device)
    for n_left in reversed(range(config.max_new_tokens)):
        chosen = _next_ids(logits, config, [histories[r] for r in rows], [draws[r] for r in rows], banned)
        new: list[int | None] = [None] * len(histories)
        for row, token in zip(rows, chosen, strict=True):
            new[row] = token
            histories[row].append(token)
        yield new
        alive = []
        for place, (row, token) in enumerate(zip(rows, chosen, strict=True)):
            ended = token in end_ids or (is_finished is not None and is_finished(row, token))
            full = len(histories[row]) > max_len and not slide
            if not (ended or full):
                alive.append(place)
        if not alive or not n_left:
            return
        if len(alive) < len(rows):
            keep = torch.tensor(alive, device=device)
            rows, chosen, state = [rows[p] for p in alive], [chosen[p] for p in alive], state.select(keep)
        if full_rows := [row for row in rows if len(histories[row]) - begins[row] > max_len]:
            for row in full_rows:
                begins[row] = len(histories[row]) - max(1, max_len // 2)
            with packed:
                logits, state = read([histories[row][begins[row] :] for row in rows], n_left)
        else:
            with packed, torch.inference_mode():
                logits, state = model.step(torch.tensor(chosen, device=device)[:, None], state)
            logits = logits[:, -1]


def check_samples(samples: Sequence[int], config: GenerationConfig) -> None:
    """Raise `UserError` for no samples, a negative sample number, or several samples that would be equal."""
    if not samples:
        raise UserError("n must be at least 1: it is the number of samples per prompt")
    if min(samples) < 0:
        raise UserError(f"sample is {min(samples)} and must not be negative: sample numbers start at 0")
    if len(samples) > 1 and config.temperature == 0:
        raise UserError(
            f"n is {len(samples)} and temperature is 0: all samples would be equal; set a temperature above 0, or n = 1"
        )


def check_ids(prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Raise `UserError` for an id that is not in the vocabulary.

    >>> check_ids([[0, 1], [2, 9]], 9)
    Traceback (most recent call last):
    glassformer.errors.UserError: prompt 2 has the id 9, and the vocabulary has 9 tokens, with the ids 0 to 8
    """
    for number, prompt in enumerate(prompts, 1):
        for token in prompt:
            if not 0 <= token < vocab_size:
                raise UserError(
                    f"prompt {number} has the id {token}, and the vocabulary has {vocab_size:,} tokens, with the ids 0 "
                    f"to {vocab_size - 1}"
                )


def check_prompts(prompts: Sequence[Sequence[int]], max_len: int, slide: bool = False) -> None:
    """Raise `UserError` for an empty prompt, or for a prompt longer than the context unless `slide`."""
    for number, prompt in enumerate(prompts, 1):
        if not prompt:
            raise UserError(f"prompt {number} is empty: give at least one token to start from")
        if len(prompt) > max_len and not slide:
            raise UserError(
                f"prompt {number} has {len(prompt)} tokens and the model's context is {max_len}: shorten it, or "
                "let the context slide (--context slide), which drops the beginning"
            )


def causal_frame(tokenizer: Tokenizer, config: ModelConfig) -> Frame:
    """Return the special tokens that a causal model reads around a text, as in its training.

    Before the text are the tokens from the tokenizer's file (`<s>` for Llama), otherwise the start token in the model's
    configuration. They are empty if training added no token, or no token is recorded. All functions that pass text to a
    causal model use this frame: prompts, scores and vectors.
    """
    start = () if config.decoder_start_id is None else (config.decoder_start_id,)
    return Frame(before=tokenizer.frames.prompt.before or start)


def end_ids_of(tokenizer: Tokenizer, config: ModelConfig) -> list[int]:
    """Return the id that ends a text of a causal model, if there is one: the model's, or else the tokenizer's."""
    return [end for end in (config.eos_id, tokenizer.eos_id) if end is not None][:1]


def never_written(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """Return ids without text: special tokens except the end token, and rows of the table beyond the vocabulary."""
    special = [tokenizer.vocab[token] for token in tokenizer.special_tokens]
    return [i for i in special if i != tokenizer.eos_id] + list(range(tokenizer.vocab_size, vocab_size))


@torch.inference_mode()
def read_prompts(
    model: Decodable,
    prompts: Sequence[Sequence[int]],
    max_len: int,
    device: torch.device | str,
    source: SourceBatch | None = None,
) -> tuple[Tensor, Any]:
    """Read prompts of unequal length into a new state; return logits (B, V) at the end of each row and the state."""
    token_ids, mask = (x.to(device) for x in pad(prompts, 0))
    lengths, width = mask.sum(dim=1), mask.shape[1]
    uneven = not bool(mask.all())
    state = model.start(len(prompts), max_len, *(source or ()))
    last: Tensor | None = None
    for begin in range(0, width, PREFILL):
        end = min(begin + PREFILL, width)
        logits, state = model.step(token_ids[:, begin:end], state, mask[:, begin:end] if uneven else None)
        here = (lengths > begin) & (lengths <= end)
        at = (lengths - 1 - begin).clamp(0, end - begin - 1)
        found = logits.gather(1, at[:, None, None].expand(-1, 1, logits.shape[-1])).squeeze(1)
        last = found if last is None else torch.where(here[:, None], found, last)
    assert last is not None
    return last, state


def _next_ids(
    logits: Tensor,
    config: GenerationConfig,
    histories: Sequence[Sequence[int]],
    draws: Sequence[np.random.Generator],
    banned: Tensor,
) -> list[int]:
    uniform = torch.tensor([draw.random() for draw in draws], dtype=torch.float64) if config.temperature > 0 else None
    return choose(next_logits(logits, config, histories, banned), uniform).tolist()


def next_logits(logits: Tensor, config: GenerationConfig, histories: Sequence[Sequence[int]], banned: Tensor) -> Tensor:
    """Shape the logits (N, V) of the ids that follow `histories`; `banned` ids get -inf.

    The result is on the CPU, because not every device has the double precision that sampling needs.
    """
    seen = None
    if config.repetition_penalty != 1:
        seen = torch.zeros_like(logits, dtype=torch.bool)
        for place, history in enumerate(histories):
            seen[place, torch.tensor(history, device=logits.device)] = True
    logits = logits.float().index_fill(-1, banned, -torch.inf)
    return shape_logits(logits, config, seen).cpu()


@dataclass(frozen=True)
class EncodedPrompt:
    """Prompt as ids for the model."""

    ids: list[int]
    is_spaced: bool = False
    """True if its text ends with a space that is not in the ids, because some tokenizers drop it."""


def with_settings(config: GenerationConfig, settings: Mapping[str, Any]) -> GenerationConfig:
    """Replace settings of a configuration: `stop` may be a single text, and `seed` None draws a new seed."""
    changes = dict(settings)
    if isinstance(changes.get("stop"), str):
        changes["stop"] = (changes["stop"],)
    if changes.get("seed", 0) is None:
        changes["seed"] = secrets.randbits(32)
    return replace(config, **changes)


def stream_texts(
    network: Network,
    tokenizer: Tokenizer,
    prompts: Sequence[EncodedPrompt],
    config: GenerationConfig,
    *,
    slide: bool,
    device: torch.device | str,
    samples: Sequence[int] = (0,),
    generator: Callable[..., Iterator[list[int | None]]] = generate,
) -> Iterator[list[str]]:
    """Continue prompts: yield the new text of every row per step, and at the end the text that was held back.

    The ids are those of `generate`, or of another `generator` with its arguments: one row per sample of each prompt.
    Prompt text and new pieces together read as the text of all ids: if a space separates them, the first piece begins
    with it, unless the prompt `is_spaced`. An incomplete character, and text that may become a stop text, wait for
    later tokens.
    """
    ids = [prompt.ids for prompt in prompts]
    check_ids(ids, min(tokenizer.vocab_size, network.config.vocab_size))
    rows = [_RowText(tokenizer, prompt, config.stop) for prompt in prompts for _ in samples]
    end_ids = end_ids_of(tokenizer, network.config)
    steps = generator(
        network,
        ids,
        config,
        max_len=network.config.max_len,
        end_ids=end_ids,
        suppress_ids=[i for i in never_written(tokenizer, network.config.vocab_size) if i not in end_ids],
        slide=slide,
        device=device,
        is_finished=lambda row, _: rows[row].watch.stopped,
        samples=samples,
    )
    for new in steps:
        yield ["" if i is None or i in end_ids else row.push(i) for row, i in zip(rows, new, strict=True)]
    yield [row.flush() for row in rows]


class _RowText:
    """Text generated after a prompt, token by token."""

    def __init__(self, tokenizer: Tokenizer, prompt: EncodedPrompt, stops: Sequence[str]) -> None:
        self.stream, self.watch = tokenizer.stream(after=prompt.ids), StopWatch(stops)
        self.is_spaced = prompt.is_spaced  # until the first text is generated

    def push(self, token: int) -> str:
        text = self.stream.push(token)
        if text and self.is_spaced:
            text, self.is_spaced = text.removeprefix(" "), False
        return self.watch.push(text)

    def flush(self) -> str:
        return "" if self.watch.stopped else self.watch.push(self.stream.flush()) + self.watch.flush()


class StopWatch:
    """Filter that passes text until one of the stop texts appears, even if it is split between pieces.

    >>> watch = StopWatch(["END"])
    >>> watch.push("one E"), watch.push("ND two"), watch.stopped
    ('one ', '', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = [stop for stop in stops if stop]
        self.stopped = False
        self._held = ""

    def push(self, piece: str) -> str:
        """Return the text that is certainly before any stop text; hold the rest back."""
        if self.stopped:
            return ""
        text = self._held + piece
        found = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        n_held = max((n for stop in self.stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def flush(self) -> str:
        """Return the text that was held back, at the end of the stream."""
        held, self._held = self._held, ""
        return held
