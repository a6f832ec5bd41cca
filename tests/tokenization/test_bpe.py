"""Learning merges: the fast learner, the reference that rescans, and the rules that both follow."""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.common.errors import UserError
from glassformer.tokenization import SCHEMES, Scheme, Tokenizer
from glassformer.tokenization.bpe import LearnedBPE, learn_bpe, learn_bpe_by_rescanning
from glassformer.tokenization.chunks import count_chunks
from glassformer.tokenization.reference import longest_match, merge_steps
from glassformer.tokenization.schemes import BYTE_TO_CHARACTER, token_bytes

SENNRICH = {"low␣": 5, "lower␣": 2, "newest␣": 6, "widest␣": 3}
"""The example of Sennrich et al., section 3.2."""

CHUNKS = st.dictionaries(
    st.text("ab", min_size=1, max_size=12) | st.text("abcde é", min_size=1, max_size=8),
    st.integers(1, 5),
    min_size=1,
    max_size=12,
)


def test_the_example_of_the_paper_gives_its_merges() -> None:
    # The alphabet has 11 symbols, d e i l n o r s t w </w>. (e, s), (s, t) and (t, </w>) all occur 6 + 3 times; the
    # lowest ids win, so t</w> comes before est. Then lo: 5 + 2, low: 5 + 2.
    learned = learn_bpe(SENNRICH, vocab_size=11 + 5)
    assert learned.merges == [("e", "s"), ("t", "␣"), ("es", "t␣"), ("l", "o"), ("lo", "w")]


@settings(max_examples=150)
@given(CHUNKS, st.integers(12, 40), st.integers(1, 4))
def test_the_fast_learner_equals_the_reference(chunks: dict[str, int], vocab_size: int, min_frequency: int) -> None:
    fast = learn_bpe(chunks, vocab_size=vocab_size, min_frequency=min_frequency)
    assert fast == learn_bpe_by_rescanning(chunks, vocab_size=vocab_size, min_frequency=min_frequency)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_fast_learner_equals_the_reference_on_real_text(scheme: Scheme, documents: list[str]) -> None:
    chunks = count_chunks(documents[:8], scheme)
    n_alphabet = len(set().union(*chunks))
    fast = learn_bpe(chunks, vocab_size=n_alphabet + 60)
    assert len(fast.merges) == 60
    assert fast == learn_bpe_by_rescanning(chunks, vocab_size=n_alphabet + 60)


def test_pitfall_26_merges_do_not_depend_on_the_order_of_the_text() -> None:
    text = "she sells sea shells by the sea shore so the shells she sells are sea shells"
    chunks = list(Counter(text.split()).items())
    expected = learn_bpe(dict(sorted(chunks)), vocab_size=60, min_frequency=1)
    for seed in range(10):
        random.Random(seed).shuffle(chunks)
        assert learn_bpe(dict(chunks), vocab_size=60, min_frequency=1) == expected


def test_pitfall_26_ties_go_to_the_lowest_left_id_then_the_lowest_right_id() -> None:
    # All four pairs occur once. Ids in code-point order: a b c d e f.
    learned = learn_bpe({"db": 1, "ce": 1, "ca": 1, "df": 1}, vocab_size=10, min_frequency=1)
    assert learned.merges == [("c", "a"), ("c", "e"), ("d", "b"), ("d", "f")]


def greatest_pairs(chunks: dict[bytes, int], n_merges: int) -> list[tuple[bytes, bytes]]:
    """Learn merges of bytes, in the simplest way: of equally frequent pairs, `max` takes the greatest."""
    words = {tuple(bytes([byte]) for byte in chunk): n for chunk, n in chunks.items()}
    merges: list[tuple[bytes, bytes]] = []
    for _ in range(n_merges):
        counts: Counter[tuple[bytes, bytes]] = Counter()
        for word, n in words.items():
            for pair in pairwise(word):
                counts[pair] += n
        if not counts:
            break
        best = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(best)
        merged: Counter[tuple[bytes, ...]] = Counter()
        for word, n in words.items():
            new: list[bytes] = []
            for symbol in word:
                is_second = new and (new[-1], symbol) == best
                new = [*new[:-1], new[-1] + symbol] if is_second else [*new, symbol]
            merged[tuple(new)] += n
        words = dict(merged)
    return merges


@settings(max_examples=150)
@given(CHUNKS, st.integers(1, 30))
def test_pitfall_26_the_greatest_of_equally_frequent_pairs_is_merged_on_request(
    chunks: dict[str, int], n_merges: int
) -> None:
    as_bytes = {chunk.encode(): n for chunk, n in chunks.items()}
    written = {"".join(BYTE_TO_CHARACTER[byte] for byte in chunk): n for chunk, n in as_bytes.items()}
    learned = learn_bpe(
        written,
        vocab_size=256 + n_merges,
        initial_alphabet=BYTE_TO_CHARACTER,
        min_frequency=1,
        bytes_of=lambda token: token_bytes(token, "byte"),
    )
    merges = [(token_bytes(left, "byte"), token_bytes(right, "byte")) for left, right in learned.merges]
    assert merges == greatest_pairs(as_bytes, n_merges)


def test_pitfall_26_a_tokenizer_learns_with_the_rule_of_the_greatest_pair(documents: list[str]) -> None:
    texts = documents[:3]
    learn = partial(Tokenizer.train, texts, vocab_size=340, special_tokens=(), min_frequency=1)
    found = learn(learner="greatest_pair")
    chunks = count_chunks(texts, "byte")
    naive = greatest_pairs({token_bytes(chunk, "byte"): n for chunk, n in chunks.items()}, 84)
    assert [(token_bytes(left, "byte"), token_bytes(right, "byte")) for left, right in found.merges] == naive
    assert found.merges != learn().merges == learn(learner="tokenizers").merges
    assert found.decode(found.encode(texts[0])) == texts[0]


def test_pitfall_28_new_ids_never_collide(documents: list[str]) -> None:
    chunks = count_chunks(documents[:20], "char")
    learned = learn_bpe(chunks, vocab_size=600, special_tokens=["[UNK]", "[MASK]"])
    assert len(learned.tokens) == len(set(learned.tokens)) == 600
    n_start = 600 - len(learned.merges)
    assert learned.tokens[:2] == ["[UNK]", "[MASK]"]
    assert learned.tokens[2:n_start] == sorted(set().union(*chunks))
    assert learned.tokens[n_start:] == [left + right for left, right in learned.merges]


def test_pitfall_28_no_merge_spells_a_special_token() -> None:
    chunks = {"[UNK][UNK]": 50, "[UNK]s": 9}
    learned = learn_bpe(chunks, vocab_size=40, special_tokens=["[UNK]"])
    assert "[UNK]" not in [left + right for left, right in learned.merges]
    assert ("[", "UNK]") not in learned.merges
    assert len(learned.merges) > 3
    assert learned == learn_bpe_by_rescanning(chunks, vocab_size=40, special_tokens=["[UNK]"])


def test_overlapping_pairs_are_merged_from_the_left() -> None:
    learned = learn_bpe({"aaaaa": 1, "baaab": 1}, vocab_size=3)
    assert learned.merges == [("a", "a")]
    assert learned.frequencies == [2, 2, 3]  # aa aa a; b aa a b


def test_frequencies_count_the_tokens_of_the_training_text() -> None:
    learned = learn_bpe(SENNRICH, vocab_size=16)
    frequencies = dict(zip(learned.tokens, learned.frequencies, strict=True))
    # low␣ ×5, low e r ␣ ×2, n e w est␣ ×6, w i d est␣ ×3
    assert frequencies["low"] == 7
    assert frequencies["est␣"] == 9
    assert frequencies["es"] == frequencies["lo"] == 0
    assert frequencies["e"] == 2 + 6


def test_learning_stops_early_when_no_pair_is_frequent_enough() -> None:
    assert learn_bpe({"abc": 1, "abd": 1}, vocab_size=100).merges == [("a", "b")]
    assert learn_bpe({"abc": 1}, vocab_size=100, min_frequency=0).merges == [("a", "b"), ("ab", "c")]


def test_vocab_size_0_gives_the_alphabet() -> None:
    learned = learn_bpe({"ba": 5}, vocab_size=0, special_tokens=["[UNK]"], initial_alphabet=BYTE_TO_CHARACTER)
    assert learned.merges == []
    assert learned.tokens == ["[UNK]", *sorted(BYTE_TO_CHARACTER)]


def test_progress_counts_the_merges() -> None:
    calls: list[tuple[int, int]] = []
    learn_bpe(SENNRICH, vocab_size=14, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("learn", [learn_bpe, learn_bpe_by_rescanning])
def test_wrong_arguments_of_learning_are_named(learn: Callable[..., LearnedBPE]) -> None:
    with pytest.raises(UserError, match=r"of 11 is too small for 11 symbols .* 1 special .* at least 12"):
        learn(SENNRICH, vocab_size=11, special_tokens=["[UNK]"])
    with pytest.raises(UserError, match="no text"):
        learn({}, vocab_size=100)


def test_dropout_of_one_makes_no_merge_and_of_zero_every_merge() -> None:
    ranks = {("a", "b"): 0, ("ab", "c"): 1}
    for dropout, expected in [(1.0, ["a", "b", "c"]), (0.0, ["abc"])]:
        symbols = list("abc")
        list(merge_steps(symbols, ranks, dropout, random.Random(0)))
        assert symbols == expected


def test_dropout_skips_the_given_share_of_merges() -> None:
    # One possible merge: it is skipped with probability 0.3 (1000 draws, four standard deviations = 0.058).
    rng = random.Random(0)
    left_out = 0
    for _ in range(1000):
        symbols = ["a", "b"]
        list(merge_steps(symbols, {("a", "b"): 0}, 0.3, rng))
        left_out += len(symbols) == 2
    assert 242 < left_out < 358


def test_longest_match_prefers_the_more_frequent_of_equal_lengths() -> None:
    assert longest_match("abcd", {"abc": 1, "bcd": 2, "a": 9}, "?") == ["a", "bcd"]
    assert longest_match("abcd", {"abc": 2, "bcd": 1, "d": 9}, "?") == ["abc", "d"]


def test_longest_match_gives_one_unknown_token_per_span() -> None:
    assert longest_match("xxabyyab", {"ab": 1}, "?") == ["?", "ab", "?", "ab"]
    assert longest_match("", {"ab": 1}, "?") == []
    assert longest_match("ba", {"ab": 1}, "?") == ["?"]


def test_longest_match_takes_a_line_of_many_different_characters() -> None:
    line = "".join(map(chr, range(0x4E00, 0x4E00 + 1200)))
    assert longest_match(line, dict.fromkeys(line, 1), "?") == list(line)


@settings(max_examples=100)
@given(
    st.text("abc", max_size=30),
    st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(0, 5), min_size=1),
)
def test_longest_match_equals_the_plain_rule(chunk: str, frequencies: dict[str, int]) -> None:
    """The plain rule tries every token, the longest and most frequent first, on every span that is left."""
    spans: list[tuple[str, bool]] = [(chunk, False)]  # (text, is it a token)
    for token in sorted(frequencies, key=lambda token: (-len(token), -frequencies[token], token)):
        split: list[tuple[str, bool]] = []
        for text, done in spans:
            for i, rest in enumerate([text] if done else text.split(token)):
                split += [(token, True)] * (i > 0) + [(rest, done)]
        spans = split
    expected = [text if done else "?" for text, done in spans if text]
    assert longest_match(chunk, frequencies, "?") == expected
