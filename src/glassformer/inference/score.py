"""Log-probabilities of given texts (forced decoding)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from glassformer.common import notebook
from glassformer.common.errors import Log, UserError
from glassformer.data.batching import batches_by_length, pad, padded
from glassformer.inference.contexts import Context, Ids, read_contexts
from glassformer.inference.decodable import Decodable
from glassformer.inference.sampling import log_softmax
from glassformer.models.build import Network
from glassformer.models.devices import InParts
from glassformer.tokenization.tokenizer import Tokenizer

MAX_TOKENS = 2048
"""Largest number of source, context and target positions in a batch, with padding. Target positions need logits."""


@dataclass(frozen=True)
class Score:
    """Log-probability of a text, and the length of the text.

    >>> score = Score(log_prob=-8 * math.log(2), n_tokens=4, n_bytes=16)
    >>> score.bits_per_token, score.bits_per_byte, score.perplexity
    (2.0, 0.5, 4.0)
    """

    log_prob: float
    """Log-probability in nats."""
    n_tokens: int
    """Number of predicted tokens, including the end token of a target."""
    n_bytes: int
    """Number of UTF-8 bytes of the text of the predicted tokens."""
    n_unknown: int = 0
    """Number of predicted tokens that replace text that the tokenizer does not know."""

    @property
    def nats_per_token(self) -> float:
        """Loss in nats per token; NaN if no token was predicted."""
        return -self.log_prob / self.n_tokens if self.n_tokens else math.nan

    @property
    def bits_per_token(self) -> float:
        return self.nats_per_token / math.log(2)

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte, comparable across tokenizers; NaN for an empty text, and if a part of the text is unknown.

        One `[UNK]` stands for any number of characters, to which the model gives no probability.
        """
        return -self.log_prob / math.log(2) / self.n_bytes if self.n_bytes and not self.n_unknown else math.nan

    @property
    def perplexity(self) -> float:
        """Exponential of the nats per token; infinite from e^709 on."""
        return math.exp(self.nats_per_token) if not self.nats_per_token >= 709 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Return all values by name, derived ones included: a row for `pandas.DataFrame`."""
        names = ("log_prob", "n_tokens", "n_bytes", "nats_per_token", "bits_per_token", "bits_per_byte", "perplexity")
        return {name: getattr(self, name) for name in names}

    def _repr_html_(self) -> str:
        return notebook.table(self.to_dict())


class Scorer(Protocol):
    """Model that computes the probability of given texts."""

    def score(self, texts: Sequence[str], targets: Sequence[str] | None, log: Log) -> list[Score]:
        """Return log p of each text, or, with `targets`, of each target given its text."""


def forced_scores(
    model: Decodable,
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    *,
    start_id: int,
    device: torch.device | str = "cpu",
    max_tokens: int = MAX_TOKENS,
) -> list[list[float]]:
    """Return log p of each id of target i given source i; targets follow the start id and may include the end token.

    The sum equals `log_prob` of beam search for the same ids.
    """
    contexts = [[start_id]] * len(sources)
    return continuation_scores(model, contexts, targets, sources=sources, device=device, max_tokens=max_tokens)


@torch.inference_mode()
def continuation_scores(
    model: Decodable,
    contexts: Sequence[Ids],
    targets: Sequence[Ids],
    *,
    sources: Sequence[Ids] = (),
    device: torch.device | str = "cpu",
    max_tokens: int = MAX_TOKENS,
) -> list[list[float]]:
    """Return log p, in nats, of each id of target i after context i (one or more ids) and source i, if there is one.

    Teacher forcing: one step reads the context and gives p of the first target id; one more step reads the target
    without its last id and gives the others. Rows of a batch with the same context (such as a question) and the same
    source read both once.
    """
    of_sources = sources or [()] * len(contexts)
    sizes = [sum(map(len, row)) for row in zip(of_sources, contexts, targets, strict=True)]
    scores: list[list[float]] = [[] for _ in targets]

    def scores_of(batch: Sequence[int]) -> list[list[float]]:
        # Read each context once
        read = [Context(tuple(contexts[i]), tuple(of_sources[i])) for i in batch]
        longest = max(len(contexts[i]) + len(targets[i]) for i in batch)
        first, state = read_contexts(model, read, longest, device)

        # Judge the first id of each target by the context, and the others by the target without its last id
        labels, _ = pad([targets[i] for i in batch], 0)  # (B, T)
        parts = [_judge(first[:, None], labels[:, :1].to(device))]
        inputs, mask = padded([targets[i][:-1] for i in batch], device)
        if inputs.shape[1]:
            rest, _ = model.step(inputs, state, mask)
            parts.append(_judge(rest, labels[:, 1:].to(device)))
        log_probs = torch.cat(parts, dim=1).tolist()
        return [values[: len(targets[i])] for i, values in zip(batch, log_probs, strict=True)]

    # Batches of similar length
    for i, score in InParts().each(batches_by_length(sizes, max_tokens), scores_of):
        scores[i] = score
    return scores


def _judge(logits: Tensor, labels: Tensor) -> Tensor:
    """Return log p (B, T) of labels (B, T) under logits (B, T, V)."""
    return log_softmax(logits[:, : labels.shape[1]]).gather(2, labels[:, :, None]).squeeze(2)


def text_scores(
    network: Network,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    targets: Sequence[str] | None = None,
    *,
    start: Ids,
    device: torch.device | str = "cpu",
) -> list[Score]:
    """Return log p of every text, or, with `targets`, of each target as the continuation of its text.

    A text follows `start`, the ids that training put before it (`text.causal_frame`). If `start` is empty, the first
    token is context only: it is not scored, and its bytes do not count. A text that is longer than the model's context
    is read in `windows`.
    """
    max_len = network.config.max_len
    contexts: Sequence[str]
    encoded: Sequence[tuple[Ids, Ids]]
    rows: list[list[tuple[Ids, Ids]]]
    # The rows of each text, and the texts of contexts and targets
    if targets is None:
        contexts, scored = [""] * len(texts), texts
        encoded = [((), ids) for ids in tokenizer.encode_batch(texts)]
        rows = [list(windows(ids, start, max_len)) for _, ids in encoded]
    else:
        contexts, scored = texts, targets
        encoded = [split_pair(tokenizer, text, target) for text, target in zip(texts, targets, strict=True)]
        rows = [
            [fit_context(*with_context([*start, *context], target), max_len)][: len(target)]  # no row for ()
            for context, target in encoded
        ]
    flat = [pair for row in rows for pair in row]
    scores = iter(continuation_scores(network, [c for c, _ in flat], [t for _, t in flat], device=device))
    # The sums of each text
    results = []
    for context, text, row, (context_ids, ids) in zip(contexts, scored, rows, encoded, strict=True):
        log_prob = sum(sum(next(scores)) for _ in row)
        n_bytes, n_before = len(text.encode("utf-8")), len(context.encode("utf-8"))
        if not start and not context_ids:  # the first token is not scored
            n_before -= tokenizer.n_bytes_of(ids[:1])
        n_bytes = min(n_bytes, n_before + n_bytes)  # the first token may include space of the context
        n_unknown = sum(tokenizer.n_unknown(target) for _, target in row)
        results.append(Score(float(log_prob), sum(len(target) for _, target in row), n_bytes, n_unknown))
    return results


def split_pair(tokenizer: Tokenizer, context: str, target: str) -> tuple[list[int], list[int]]:
    """Return the ids of a context and of its continuation, cut after the last token of the context.

    Both are encoded as one text, as in training. Space at the end of the context moves to the target, because tokens of
    words include their leading space.

    >>> tokenizer = Tokenizer.train(["to be or not to be"] * 2, vocab_size=300, special_tokens=())
    >>> [tokenizer.tokens(ids) for ids in split_pair(tokenizer, "to ", "be")]
    [['to'], [' be']]

    Raises `UserError` if the target has no token of its own.
    """
    words = context.rstrip()
    context, target = words, context[len(words) :] + target
    context_ids = tokenizer.encode(context)
    target_ids = tokenizer.encode(context + target)[len(context_ids) :]
    if target and not target_ids:
        raise UserError(
            f"{target[:40]!r} has no token of its own after {context[-40:]!r}, whose last token includes it: end the "
            "context at the end of a word"
        )
    return context_ids, target_ids


def with_context(context: Ids, target: Ids) -> tuple[Ids, Ids]:
    """Return the context and the target; if the context is empty, the first id of the target becomes the context.

    >>> with_context([], [5, 6]), with_context([1], [5, 6])
    (([5], [6]), ([1], [5, 6]))
    """
    return (context, target) if context else (target[:1], target[1:])


def fit_context(context: Ids, target: Ids, max_len: int) -> tuple[Ids, Ids]:
    """Return the context and the target, without first ids of the context that do not fit the model's `max_len`.

    The last target id is never an input, so the two may have `max_len` + 1 ids.

    >>> fit_context([1, 2, 3, 4], [5, 6], max_len=3)
    ([3, 4], [5, 6])
    """
    if len(target) > max_len:
        raise UserError(f"the target has {len(target):,} tokens and the model's context is {max_len:,}: shorten it")
    return context[max(0, len(context) + len(target) - max_len - 1) :], target


def windows(ids: Ids, start: Ids, max_len: int) -> Iterator[tuple[Ids, Ids]]:
    """Yield (context, target) pairs of a long text, for a model that reads `max_len` ids; every id is a target once.

    The first target follows the ids of `start`; if `start` is empty, the first id is context only. The last window also
    reads `max_len` ids, most of them as context. lm-evaluation-harness cuts texts in the same way.

    >>> list(windows([10, 11, 12, 13, 14, 15], [0], max_len=4))
    [([0], [10, 11, 12, 13]), ([11, 12, 13], [14, 15])]
    """
    start = list(start)[-max_len:]
    row = [*start, *ids]
    first = max(1, len(start))
    end = max_len + 1  # the last target is not read
    while first < len(row):
        end = min(end, len(row))
        yield row[max(0, end - max_len - 1) : first], row[first:end]
        first, end = end, end + max_len
