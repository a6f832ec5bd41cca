"""Generation with a cache, greedy or sampled, for many prompts at once: read the prompts, then `step` per token."""

import itertools
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import GENERATION_BATCH, BeamConfig, GenerationConfig
from glassformer.data.batching import pad
from glassformer.errors import UserError, require_integer
from glassformer.inference.decodable import Decodable, joined, read_at
from glassformer.inference.sampling import all_ends, choose, shape_logits
from glassformer.kernels.packed import PackedWeights
from glassformer.models.build import Network
from glassformer.seeds import Stream, rng
from glassformer.tokenization.special_tokens_template import Frame
from glassformer.tokenization.tokenizer import Tokenizer

SourceBatch = tuple[Tensor, Tensor | None]
"""Source ids (B, S) and their mask (B, S), True = real; `None` instead of the mask if all are real."""

RowGenerator = Callable[..., Iterator[dict[int, int]]]
"""`generate_rows`, or a function with its arguments and results."""

PREFILL = 256
"""Number of prompt tokens read at once, which limits the memory of their hidden states."""
REFILL = 1 / 4
"""Fraction of a batch that must be free before new rows join it. To read prompts takes as long as one step or longer,
because it also multiplies by all weights once. With fewer rows at a time, more calls read prompts; with more rows, more
of the batch stays free."""


def generate(
    model: Decodable,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    max_len: int,
    end_ids: Collection[int] = (),
    suppress_ids: Sequence[int] = (),
    slide: bool = False,
    device: torch.device | str = "cpu",
    is_finished: Callable[[int, int], bool] | None = None,
    source: SourceBatch | None = None,
    samples: Sequence[int] = (0,),
) -> Iterator[list[int | None]]:
    """Yield per step the new id of every row, or None for a row that has ended (`generate_rows` with one batch)."""
    n_rows = len(prompts) * len(samples)
    steps = generate_rows(
        model,
        prompts,
        config,
        max_len=max_len,
        end_ids=end_ids,
        suppress_ids=suppress_ids,
        slide=slide,
        device=device,
        is_finished=is_finished,
        source=source,
        samples=samples,
    )
    for new in steps:
        yield [new.get(row) for row in range(n_rows)]


def generate_rows(
    model: Decodable,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    max_len: int,
    end_ids: Collection[int] = (),
    suppress_ids: Sequence[int] = (),
    slide: bool = False,
    device: torch.device | str = "cpu",
    is_finished: Callable[[int, int], bool] | None = None,
    source: SourceBatch | None = None,
    samples: Sequence[int] = (0,),
    batch_size: int | None = None,
) -> Iterator[dict[int, int]]:
    """Yield per step the new id of each live row, by the number of the row; other rows have ended or wait.

    Each prompt has one row per item of `samples` (their numbers); all rows of the first prompt come first. A row ends
    with one of `end_ids` or `config.end_ids` (which is yielded), if `is_finished(row, id)` returns True, after
    `config.max_new_tokens`, or when the model's context `max_len` is full. With `slide`, a full row continues: the
    older half of its context is dropped and the rest is read again. `is_finished` is called after the step with that
    id was yielded. Ids in `suppress_ids` are never chosen.

    At most `batch_size` rows are live; None = all. The others wait, in order. When `REFILL` of the batch is free, the
    next rows are read together and join it (continuous batching; Yu 2022, section 3).

    With a `source` (ids and their mask), prompts are beginnings of targets: the decoder's start id, then forced ids.

    Sample i draws from stream `SAMPLES` of `seeds.py`, for every prompt. A row of a batch therefore gets the same ids
    as alone, and equal prompts get equal texts; use more samples to get different texts. Raises `UserError` for an
    empty prompt, for a prompt longer than the context unless `slide`, for several samples at temperature 0, and for a
    `batch_size` below 1.
    """
    check_samples(samples, config)
    if slide and source is not None:
        raise ValueError("slide: expected False with a source, because the beginning of a target cannot be dropped")
    check_prompts(prompts, max_len, slide)
    waiting = WaitingRows(prompts, samples, config.seed, max_len, batch_size)
    ends = all_ends(end_ids, config)

    def has_ended(row: Row) -> bool:
        token, n_new = row.history[-1], len(row.history) - len(prompts[row.prompt])
        if token in ends or (is_finished is not None and is_finished(row.number, token)):
            return True
        return n_new == config.max_new_tokens or (len(row.history) > max_len and not slide)

    banned = torch.tensor(list(suppress_ids), dtype=torch.long, device=device)
    packed = PackedWeights()
    logits: Tensor
    state: Any = None
    cached: list[Row] = []  # rows of the state, in its order
    slid: list[Row] = []  # live rows whose context has changed
    while True:
        unread = [*slid, *waiting.take(len(cached) + len(slid))]
        if not cached and not unread:
            return
        with packed, torch.inference_mode():
            if cached:
                last = torch.tensor([row.history[-1] for row in cached], device=device)
                logits, state = model.step(last[:, None], state)
                logits = logits[:, -1]
            if unread:
                first_logits, read = _read_rows(model, unread, config.max_new_tokens, max_len, device, source)
                logits = torch.cat((logits, first_logits)) if cached else first_logits
                state = joined(state, read) if cached else read
        rows = cached + unread
        chosen = _next_ids(logits, config, [row.history for row in rows], [row.draws for row in rows], banned)
        for row, token in zip(rows, chosen, strict=True):
            row.history.append(token)
        yield {row.number: token for row, token in zip(rows, chosen, strict=True)}
        live = [row for row in rows if not has_ended(row)]
        slid = [row for row in live if row.n_context > max_len]
        for row in slid:
            row.begin = len(row.history) - max(1, max_len // 2)
        cached = [row for row in live if row not in slid]
        if 0 < len(cached) < len(rows):
            places = {row: place for place, row in enumerate(rows)}
            state = state.select(torch.tensor([places[row] for row in cached], device=device))


@dataclass(eq=False)
class Row:
    """A row of a generation: one sample of one prompt."""

    number: int
    prompt: int
    """Index of the prompt."""
    history: list[int]
    """Ids of the prompt, then new ids."""
    draws: np.random.Generator
    begin: int
    """Start of the context in `history`."""

    @property
    def n_context(self) -> int:
        return len(self.history) - self.begin


class WaitingRows:
    """Rows that wait for a place in a batch of at most `batch_size` rows (None = all), in order.

    Raises `UserError` for a `batch_size` that is not an integer of at least 1.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        samples: Sequence[int],
        seed: int,
        max_len: int,
        batch_size: int | None,
    ) -> None:
        if batch_size is not None:
            require_integer("batch_size", batch_size, 1, "the number of rows at a time")
        self.batch_size = batch_size or len(prompts) * len(samples)
        self._rows = (
            Row(number, prompt, list(ids), rng(seed, Stream.SAMPLES, sample), max(0, len(ids) - max_len))
            for number, ((prompt, ids), sample) in enumerate(itertools.product(enumerate(prompts), samples))
        )

    def take(self, n_live: int) -> list[Row]:
        """Return the rows that join `n_live` rows: none before `REFILL` of the batch is free."""
        n_free = self.batch_size - n_live
        return list(itertools.islice(self._rows, n_free if n_free >= REFILL * self.batch_size else 0))


def _read_rows(
    model: Decodable,
    rows: Sequence[Row],
    n_new: int,
    max_len: int,
    device: torch.device | str,
    source: SourceBatch | None,
) -> tuple[Tensor, Any]:
    """Read the contexts of rows, equal ones of a prompt once; return their last logits (B, V) and the new state."""
    of_rows = [(row.prompt, *row.history[row.begin :]) for row in rows]
    distinct = {context: place for place, context in enumerate(dict.fromkeys(of_rows))}
    if source is not None:
        ids, mask = source
        numbers = torch.tensor([prompt for prompt, *_ in distinct], device=ids.device)
        source = ids[numbers], None if mask is None else mask[numbers]
    contexts = [context for _, *context in distinct]
    longest = min(max_len, max(map(len, contexts)) + n_new)
    logits, state = read_prompts(model, contexts, longest, device, source)
    if len(distinct) < len(rows):
        places = torch.tensor([distinct[context] for context in of_rows], device=device)
        logits, state = logits[places], state.select(places)
    return logits, state


def check_samples(samples: Sequence[int], config: GenerationConfig) -> None:
    """Raise `UserError` for no samples, a wrong sample number, or several samples that would be equal."""
    require_integer("n", len(samples), 1, "the number of samples per prompt")
    for sample in samples:
        require_integer("sample", sample, 0, "the number of a sample, from 0")
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
            if not (isinstance(token, Integral) and 0 <= token < vocab_size):
                raise UserError(
                    f"prompt {number} has the id {token!r:.40}, and the vocabulary has {vocab_size:,} tokens, with the "
                    f"ids 0 to {vocab_size - 1}"
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


def end_ids_of(tokenizer: Tokenizer, config: ModelConfig, generation: GenerationConfig | BeamConfig) -> frozenset[int]:
    """Return the ids that end a text: the model's end token, or else the tokenizer's, and `generation.end_ids`."""
    return all_ends([end for end in (config.eos_id, tokenizer.eos_id) if end is not None][:1], generation)


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
    return read_more(model, prompts, model.start(len(prompts), max_len, *(source or ())), device)


@torch.inference_mode()
def read_more(
    model: Decodable, rows: Sequence[Sequence[int]], state: Any, device: torch.device | str
) -> tuple[Tensor, Any]:
    """Read ids of every row of a state; return logits (B, V) at the end of each row and the state.

    Rows may be empty, and then have undefined logits; at least one is not.
    """
    token_ids, mask = (x.to(device) for x in pad(rows, 0))
    lengths, width = mask.sum(dim=1), mask.shape[1]
    uneven = not bool(mask.all())
    last: Tensor | None = None
    for begin in range(0, width, PREFILL):
        end = min(begin + PREFILL, width)
        here = (lengths > begin) & (lengths <= end)
        at = (lengths - 1 - begin).clamp(0, end - begin - 1)
        found, state = read_at(model, token_ids[:, begin:end], state, mask[:, begin:end] if uneven else None, at)
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
    logits = logits.float()
    if len(banned):
        logits = logits.index_fill(-1, banned, -torch.inf)
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
    generator: RowGenerator = generate_rows,
) -> Iterator[list[str]]:
    """Continue prompts: yield the new text of every row per step, and at the end the text that was held back.

    The ids are those of `generate_rows`, or of another `generator` with its arguments: one row per sample of a prompt.
    Prompt text and new pieces together read as the text of all ids: if a space separates them, the first piece begins
    with it, unless the prompt `is_spaced`. An incomplete character, and text that may become a stop text, wait for
    later tokens.
    """
    rows = [_RowText(tokenizer, prompt, config.stop) for prompt in prompts for _ in samples]
    end_ids = end_ids_of(tokenizer, network.config, config)
    steps = _steps_of_texts(
        generator,
        network,
        tokenizer,
        prompts,
        config,
        slide=slide,
        device=device,
        samples=samples,
        is_finished=lambda row, _: rows[row].watch.stopped,
    )
    for new in steps:
        ids = [new.get(number) for number in range(len(rows))]
        yield ["" if i is None or i in end_ids else row.push(i) for row, i in zip(rows, ids, strict=True)]
    yield [row.flush() for row in rows]


def finished_texts(
    network: Network,
    tokenizer: Tokenizer,
    prompts: Sequence[EncodedPrompt],
    config: GenerationConfig,
    *,
    slide: bool,
    device: torch.device | str,
    samples: Sequence[int] = (0,),
    generator: RowGenerator = generate_rows,
    batch_size: int = GENERATION_BATCH,
) -> Iterator[tuple[int, str]]:
    """Continue any number of prompts; yield the number and the new text of each row when the row has ended.

    The rows and their texts are those of `stream_texts`; the batch has at most `batch_size` rows (`generate_rows`).
    """
    live: dict[int, tuple[_RowText, list[str]]] = {}
    end_ids = end_ids_of(tokenizer, network.config, config)
    steps = _steps_of_texts(
        generator,
        network,
        tokenizer,
        prompts,
        config,
        slide=slide,
        device=device,
        samples=samples,
        is_finished=lambda row, _: live[row][0].watch.stopped,
        batch_size=batch_size,
    )
    for new in itertools.chain(steps, ({},)):
        for number in [number for number in live if number not in new]:
            row, pieces = live.pop(number)
            yield number, "".join([*pieces, row.flush()])
        for number, token in new.items():
            if number not in live:
                live[number] = _RowText(tokenizer, prompts[number // len(samples)], config.stop), []
            row, pieces = live[number]
            if token not in end_ids:
                pieces.append(row.push(token))


def _steps_of_texts(
    generator: RowGenerator,
    network: Network,
    tokenizer: Tokenizer,
    prompts: Sequence[EncodedPrompt],
    config: GenerationConfig,
    **options: Any,
) -> Iterator[dict[int, int]]:
    """Return the steps of a generator with the context, the end and the vocabulary of a text model."""
    ids = [prompt.ids for prompt in prompts]
    check_ids(ids, min(tokenizer.vocab_size, network.config.vocab_size))
    end_ids = end_ids_of(tokenizer, network.config, config)
    return generator(
        network,
        ids,
        config,
        max_len=network.config.max_len,
        end_ids=end_ids,
        suppress_ids=[i for i in never_written(tokenizer, network.config.vocab_size) if i not in end_ids],
        **options,
    )


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
