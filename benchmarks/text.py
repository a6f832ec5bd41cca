"""Learning and encoding of tokenizers: glassformer, `tokenizers` in Rust, and two slow references in Python."""

import io
import sysconfig
import time
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import tokenizers
from tokenizers import models

from glassformer.tokenization import Scheme, Tokenizer
from glassformer.tokenization.bpe import count_pairs, replace_pair
from glassformer.tokenization.chunks import count_chunks
from task import Task

N_SAMPLES = 5
"""Merges of the rescanning learner that are measured."""


def standard_library(n_bytes: int) -> str:
    """Return the first bytes of the source of the standard library, repeated if it is shorter."""
    pieces: list[bytes] = []
    size = 0
    for path in source_files():
        pieces.append(path.read_bytes())
        size += len(pieces[-1])
        if size >= n_bytes:
            break
    whole = b"".join(pieces)
    return (whole * -(-n_bytes // len(whole)))[:n_bytes].decode("utf-8", "ignore")


@cache
def source_files() -> list[Path]:
    """Return the modules of the standard library, those outside of packages first."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in folder.rglob("*.py") if "site-packages" not in path.parts]
    return sorted(paths, key=lambda path: (len(path.parts), path))


def lines_of(n_bytes: int) -> list[str]:
    return standard_library(n_bytes).splitlines(keepends=True)


def learn(learner: str, scheme: Scheme, vocab_size: int, n_bytes: int) -> Task:
    """Learn a tokenizer from the lines of the standard library; `rescanning` is estimated from some merges."""
    lines = lines_of(n_bytes)
    if learner == "rescanning":
        trained = Tokenizer.train(lines, vocab_size=vocab_size, scheme=scheme)
        return Task(lambda: rescanning_seconds(trained, lines), measures=True)
    if learner == "rustbpe":
        return Task(lambda: _learn_with_rustbpe(lines, vocab_size))
    if learner == "sentencepiece":
        return Task(lambda: _learn_with_sentencepiece(lines, vocab_size))
    kind = "tokenizers" if learner == "tokenizers" else "glassformer"
    return Task(lambda: Tokenizer.train(lines, vocab_size=vocab_size, scheme=scheme, learner=kind))  # type: ignore[arg-type]


GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern by which GPT-2 splits a text, as the `byte` scheme does."""


def _learn_with_rustbpe(lines: list[str], vocab_size: int) -> None:
    import rustbpe

    rustbpe.Tokenizer().train_from_iterator(lines, vocab_size, pattern=GPT2_PATTERN)


def _learn_with_sentencepiece(lines: list[str], vocab_size: int) -> None:
    """Learn BPE; the default limits of a line and of the number of lines are lifted."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=io.BytesIO(),
        vocab_size=vocab_size,
        model_type="bpe",
        max_sentence_length=1 << 20,
        minloglevel=2,
    )


def rescanning_seconds(tokenizer: Tokenizer, lines: list[str]) -> float:
    """Estimate the seconds of splitting and `learn_bpe_by_rescanning` from a few measured merges.

    Each merge shortens the text, so the measured merges are at equal distances from the first to the last.
    """
    start = time.perf_counter()
    assert tokenizer.scheme is not None  # it was trained here
    chunk_counts = count_chunks(lines, tokenizer.scheme)
    splitting = time.perf_counter() - start
    n_merges = len(tokenizer.merges)
    samples = []
    for i in range(N_SAMPLES):
        n_done = (n_merges - 1) * i // (N_SAMPLES - 1)
        model = models.BPE(tokenizer.vocab, tokenizer.merges[:n_done])
        chunks = [([token.id for token in model.tokenize(chunk)], n) for chunk, n in chunk_counts.items()]
        left, right = tokenizer.merges[n_done]
        expected = (tokenizer.vocab[left], tokenizer.vocab[right])
        start = time.perf_counter()
        counts = count_pairs(chunks)
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        for symbols, _ in chunks:
            replace_pair(symbols, best, len(tokenizer.vocab))
        samples.append(time.perf_counter() - start)
        assert best == expected, "the rescanning learner must choose the same merge"
    return splitting + n_merges * mean((a + b) / 2 for a, b in pairwise(samples))


def encode(encoder: str, scheme: Scheme, vocab_size: int, n_bytes: int, piece_bytes: int = 0) -> Task:
    """Encode a text of the standard library in lines, or in pieces of `piece_bytes`; the amount is in MB.

    The tokenizer is learned on 1 MB, or on less if the text is shorter. The `reference` in Python encodes a twentieth.
    """
    tokenizer = Tokenizer.train(lines_of(min(n_bytes, 1_000_000)), vocab_size=vocab_size, scheme=scheme)
    text = standard_library(n_bytes)
    texts = (
        [text[i : i + piece_bytes] for i in range(0, len(text), piece_bytes)]
        if piece_bytes
        else text.splitlines(keepends=True)
    )
    if encoder == "reference":
        texts = list(islice(texts, max(1, len(texts) // 20)))
    amount = sum(len(one.encode()) for one in texts) / 1e6
    if encoder == "tokenizers":
        rust = tokenizers.Tokenizer.from_str(tokenizer.to_json())
        return Task(
            lambda: [found.ids for found in rust.encode_batch_fast(texts, add_special_tokens=False)], amount=amount
        )
    if encoder == "tiktoken":
        return Task(lambda: _in_tiktoken(tokenizer).encode_ordinary_batch(texts), amount=amount)
    if encoder == "reference":
        return Task(lambda: [tokenizer.reference.encode(one) for one in texts], amount=amount)
    return Task(lambda: tokenizer.encode_batch(texts), amount=amount)


@cache
def _in_tiktoken(tokenizer: Tokenizer) -> Any:
    """Return tiktoken's encoder with the merges of a tokenizer of bytes; ranks are ids."""
    import tiktoken

    ranks = {piece: i for i, piece in enumerate(tokenizer.pieces)}
    return tiktoken.Encoding("benchmark", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={})
