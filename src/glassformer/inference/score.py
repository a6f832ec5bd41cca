"""What a model thinks of texts that are given: forced decoding."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.data.batching import batches_by_length, pad
from glassformer.errors import UserError
from glassformer.inference.decodable import Decodable
from glassformer.inference.decode import read_prompts
from glassformer.inference.sampling import log_softmax
from glassformer.tokenization.tokenizer import Tokenizer

MAX_TOKENS = 2048
"""Source, context and target positions of a batch, padding included: a row of logits stands at each of the target's."""

Ids = Sequence[int]


@dataclass(frozen=True)
class ForcedScore:
    """log p of a target given what stands before it."""

    token_log_probs: list[float]
    """Of each id given the ids before it, and the source where there is one; in nats."""
    is_greedy: bool = True
    """Every id is the most probable one at its place: greedy decoding would write this target."""

    @property
    def log_prob(self) -> float:
        return sum(self.token_log_probs)


@dataclass(frozen=True)
class Score:
    """log p of a text, and how long the text is.

    >>> score = Score(log_prob=-8 * math.log(2), n_tokens=4, n_bytes=16)
    >>> score.bits_per_token, score.bits_per_byte, score.perplexity
    (2.0, 0.5, 4.0)
    """

    log_prob: float
    """In nats."""
    n_tokens: int
    """Those that were predicted; of a target its end token too."""
    n_bytes: int
    """Of the text that these tokens stand for, as UTF-8."""

    @property
    def nats_per_token(self) -> float:
        """The loss; not a number where no token was predicted."""
        return -self.log_prob / self.n_tokens if self.n_tokens else math.nan

    @property
    def bits_per_token(self) -> float:
        return self.nats_per_token / math.log(2)

    @property
    def bits_per_byte(self) -> float:
        """Comparable across tokenizers; not a number of an empty text."""
        return -self.log_prob / math.log(2) / self.n_bytes if self.n_bytes else math.nan

    @property
    def perplexity(self) -> float:
        """exp of the nats per token; from e^709 on infinite."""
        return math.exp(self.nats_per_token) if not self.nats_per_token >= 709 else math.inf


def forced_scores(
    model: Decodable,
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    *,
    start_id: int,
    device: torch.device | str = "cpu",
    max_tokens: int = MAX_TOKENS,
) -> list[ForcedScore]:
    """log p of target i (ids after the start id, end token included when it counts) given source i.

    It is what beam search calls `log_prob` for the same ids.
    """
    contexts = [[start_id]] * len(sources)
    return continuation_scores(model, contexts, targets, sources=sources, device=device, max_tokens=max_tokens)


@torch.inference_mode()
def continuation_scores(
    model: Decodable,
    contexts: Sequence[Ids],
    targets: Sequence[Ids],
    *,
    sources: Sequence[Ids] | None = None,
    device: torch.device | str = "cpu",
    max_tokens: int = MAX_TOKENS,
) -> list[ForcedScore]:
    """log p of target i (ids) after context i (ids, one or more), given source i where the model reads one.

    Teacher forcing: a context is read, which gives p of the target's first id; the target but its last id is one more
    step, which gives the others. What several rows of a batch share is read once, such as a question before its
    answers.
    """
    given = list(zip(map(tuple, sources or [()] * len(contexts)), map(tuple, contexts), strict=True))
    sizes = [len(s) + len(context) + len(t) for (s, context), t in zip(given, targets, strict=True)]
    found = [ForcedScore([]) for _ in targets]
    for batch in batches_by_length(sizes, max_tokens):
        distinct = {key: row for row, key in enumerate(dict.fromkeys(given[i] for i in batch))}
        rows = torch.tensor([distinct[given[i]] for i in batch], device=device)
        source = None
        if sources is not None:
            source_ids, source_mask = pad([s for s, _ in distinct], 0)
            source = source_ids.to(device), None if bool(source_mask.all()) else source_mask.to(device)
        n_read = max(len(given[i][1]) + len(targets[i]) for i in batch)
        first, state = read_prompts(model, [context for _, context in distinct], n_read, device, source)
        labels, _ = pad([targets[i] for i in batch], 0)  # (B, T)
        parts = [_judge(first[rows, None], labels[:, :1].to(device))]
        inputs, mask = pad([targets[i][:-1] for i in batch], 0)
        if inputs.shape[1]:
            state = state if len(distinct) == len(batch) else state.select(rows)
            rest, _ = model.step(inputs.to(device), state, None if bool(mask.all()) else mask.to(device))
            parts.append(_judge(rest, labels[:, 1:].to(device)))
        log_probs, is_best = (torch.cat(half, dim=1).tolist() for half in zip(*parts, strict=True))
        for i, values, bests in zip(batch, log_probs, is_best, strict=True):
            n = len(targets[i])
            found[i] = ForcedScore(values[:n], all(bests[:n]))
    return found


def _judge(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """log p (B, T) of the labels (B, T) under logits (B, T, V), and whether each is the most probable one."""
    log_probs = log_softmax(logits[:, : labels.shape[1]])
    return log_probs.gather(2, labels[:, :, None]).squeeze(2), log_probs.argmax(dim=2) == labels


def text_scores(
    model: Decodable,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    targets: Sequence[str] | None = None,
    *,
    start: Ids,
    max_len: int,
    device: torch.device | str = "cpu",
) -> list[Score]:
    """log p of every text, token by token, or, with `targets`, of each target as what follows its text.

    A text begins after `start`, the ids that training put before it (`decode.causal_frame`). Where `start` is empty,
    the first token of the whole is context alone: it is not scored, and its bytes do not count. A text beyond the
    context `max_len` is read in `windows`.
    """
    rows: list[list[tuple[Ids, Ids]]]
    if targets is None:
        encoded = tokenizer.encode_batch(texts)
        rows = [list(windows(ids, start, max_len)) for ids in encoded]
        unscored = [[] if start else ids[:1] for ids in encoded]
    else:
        pairs = [split_pair(tokenizer, text, target) for text, target in zip(texts, targets, strict=True)]
        rows = [[fit_context(*with_context([*start, *context], target), max_len)] for context, target in pairs]
        unscored = [[] if start or context else target[:1] for context, target in pairs]
    flat = [pair for row in rows for pair in row]
    scores = iter(continuation_scores(model, [c for c, _ in flat], [t for _, t in flat], device=device))
    found = []
    contexts, scored = ([""] * len(texts), texts) if targets is None else (texts, targets)
    for context, text, row, left_out in zip(contexts, scored, rows, unscored, strict=True):
        log_prob = sum(next(scores).log_prob for _ in row)
        n_bytes, n_before = len(text.encode("utf-8")), len(context.encode("utf-8"))
        n_bytes = min(n_bytes, n_before + n_bytes - tokenizer.n_bytes_of(left_out))  # it may hold white space before
        found.append(Score(float(log_prob), sum(len(target) for _, target in row), n_bytes))
    return found


def split_pair(tokenizer: Tokenizer, context: str, target: str) -> tuple[list[int], list[int]]:
    """The ids of a context, and of what follows it, cut where the context's tokens end.

    The two are encoded as one text, as a model has learned them; space at the end of the context goes to the target,
    where tokens of words keep theirs.

    >>> tokenizer = Tokenizer.train(["to be or not to be"] * 2, vocab_size=300, special_tokens=())
    >>> [tokenizer.tokens(ids) for ids in split_pair(tokenizer, "to ", "be")]
    [['to'], [' be']]

    Raises `UserError` when the target has no token of its own.
    """
    kept = context.rstrip()
    context, target = kept, context[len(kept) :] + target
    context_ids = tokenizer.encode(context)
    target_ids = tokenizer.encode(context + target)[len(context_ids) :]
    if target and not target_ids:
        raise UserError(
            f"{target[:40]!r} has no token of its own after {context[-40:]!r}, whose last token takes it in: end the "
            "context where a word ends"
        )
    return context_ids, target_ids


def with_context(context: Ids, target: Ids) -> tuple[Ids, Ids]:
    """A context that is not empty: where nothing stands before a target, its own first id becomes the context.

    >>> with_context([], [5, 6]), with_context([1], [5, 6])
    (([5], [6]), ([1], [5, 6]))
    """
    return (context, target) if context else (target[:1], target[1:])


def fit_context(context: Ids, target: Ids, max_len: int) -> tuple[Ids, Ids]:
    """A pair that a model of this context can read: the beginning of what stands before the target is dropped.

    The target's last id is never read, so the two may have `max_len` + 1 ids.

    >>> fit_context([1, 2, 3, 4], [5, 6], max_len=3)
    ([3, 4], [5, 6])
    """
    if len(target) > max_len:
        raise UserError(f"what is to be scored has {len(target):,} tokens and the model's context is {max_len:,}")
    return context[max(0, len(context) + len(target) - max_len - 1) :], target


def windows(ids: Ids, start: Ids, max_len: int) -> Iterator[tuple[Ids, Ids]]:
    """(context, target) pairs in which every id is a target once, for a model that reads `max_len` ids.

    The first target follows the ids of `start`; where there are none the first id is context alone. The last window
    reads `max_len` ids too, most of them as context. It is how lm-evaluation-harness cuts a text.

    >>> list(windows([10, 11, 12, 13, 14, 15], [0], max_len=4))
    [([0], [10, 11, 12, 13]), ([11, 12, 13], [14, 15])]
    """
    start = list(start)[-max_len:]
    row = [*start, *ids]
    first = n_start = max(1, len(start))
    while first < len(row):
        end = min(first + max_len - (n_start - 1 if first == n_start else 0), len(row))
        yield row[max(0, end - max_len - 1) : first], row[first:end]
        first = end
