"""Speed of learning and encoding: glassformer, `tokenizers`, and the rescanning learner, measured in one run.

    python benchmarks/tokenizer.py [--data FILE] [--vocab-size N] [--flavours byte char] [--rounds N]

Without `--data`, the text is 1 MB of the standard library's source. Both learners get the same lines and split them the
same way. They take turns; the table shows medians, and the median of the ratios of each round. The rescanning learner
would take minutes to hours, so a few of its merges, spread over the run, are measured, and the rest is interpolated.
"""

import argparse
import statistics
import sysconfig
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import tokenizers
from tokenizers import models

from glassformer.tokenization import SCHEMES, Scheme, Tokenizer
from glassformer.tokenization.bpe import count_pairs, replace_pair
from glassformer.tokenization.pretokenize import count_chunks

N_BYTES = 1_000_000
N_SAMPLES = 5  # merges of the rescanning learner that are measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a UTF-8 text file")
    parser.add_argument("--vocab-size", type=int, default=2000)
    parser.add_argument("--flavours", nargs="+", choices=SCHEMES, default=SCHEMES)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    text = standard_library() if arguments.data is None else arguments.data.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    n_bytes = len(text.encode("utf-8"))
    print(
        f"{n_bytes / 1e6:.2f} MB, {len(lines):,} lines; vocabulary {arguments.vocab_size}; {arguments.rounds} rounds\n"
    )

    print("learning      glassformer   tokenizers      time ratio   rescanning (extrapolated)          time ratio")
    trained = [compare_learning(lines, scheme, arguments.vocab_size, arguments.rounds) for scheme in arguments.flavours]

    print("\nencoding         Tokenizer   tokenizers      time ratio   reference in Python")
    for tokenizer in trained:
        compare_encoding(lines, n_bytes, tokenizer, arguments.rounds)


def standard_library() -> str:
    """Return the first megabyte of the standard library's source, files in order of their names."""
    text = ""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_text(encoding="utf-8")
        if len(text) >= N_BYTES:
            break
    return text[:N_BYTES]


def compare_learning(lines: list[str], scheme: Scheme, vocab_size: int, rounds: int) -> Tokenizer:
    ours, theirs = take_turns(
        lambda: Tokenizer.train(lines, vocab_size=vocab_size, scheme=scheme),
        lambda: Tokenizer.train(lines, vocab_size=vocab_size, scheme=scheme, learner="tokenizers"),
        rounds,
    )
    tokenizer = Tokenizer.train(lines, vocab_size=vocab_size, scheme=scheme)
    assert tokenizer.merges == Tokenizer.train(lines, vocab_size=vocab_size, scheme=scheme, learner="tokenizers").merges
    rescanning = rescanning_seconds(tokenizer, lines)
    seconds = statistics.median(ours)
    print(
        f"{scheme:<12} {seconds:>10.3f} s {statistics.median(theirs):>10.3f} s {median_ratio(ours, theirs):>15.2f}"
        f" {rescanning:>25,.0f} s {rescanning / seconds:>19,.0f}",
        flush=True,
    )
    return tokenizer


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
    return splitting + n_merges * statistics.mean((a + b) / 2 for a, b in pairwise(samples))


def compare_encoding(lines: list[str], n_bytes: int, tokenizer: Tokenizer, rounds: int) -> None:
    rust = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    ours, theirs = take_turns(
        lambda: tokenizer.encode_batch(lines),
        lambda: [encoding.ids for encoding in rust.encode_batch_fast(lines, add_special_tokens=False)],
        rounds,
    )
    sample = lines[: max(1, len(lines) // 20)]
    sample_bytes = len("".join(sample).encode("utf-8"))
    reference = seconds_of(lambda: [tokenizer.reference.encode(line) for line in sample])
    print(
        f"{tokenizer.scheme:<12} {n_bytes / 1e6 / statistics.median(ours):>8.2f} MB/s"
        f" {n_bytes / 1e6 / statistics.median(theirs):>7.2f} MB/s {median_ratio(ours, theirs):>12.2f}"
        f" {sample_bytes / 1e6 / reference:>15.3f} MB/s",
        flush=True,
    )


def take_turns(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int
) -> tuple[list[float], list[float]]:
    """Measure both calls in turns; return the seconds of each."""
    pairs = [(seconds_of(ours), seconds_of(theirs)) for _ in range(rounds)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    main()
