"""Shared text of the tests of this folder."""

import random
from pydoc_data.topics import topics

import pytest

from glassformer.tokenization import SCHEMES, Scheme, Tokenizer

SPEECH = "to be, or not to be, that is the question:\nwhether 'tis nobler in the mind to suffer"

ALPHABETS = [
    "the quick brown fox, isn't it? 'tis we'll they've I'm 3.14 x² _id_ THE END",
    "àéîõüßçñøåÅ ﬁ ½ Ⅷ İı",
    "Привет мир не только",
    "你好世界 日本語のテキスト 한국어 ㄱ 一二三",
    "مرحبا بالعالم ١٢٣ שלום नमस्ते दुनिया ไทย",
    "🙂👩‍👩‍👧🇩🇪👍🏽 ☃️ ❤️",
    "e\u0301 n\u0303 \u200b\u200d\ufeff\u2028\u2029\u00ad",
    " \t\n\r\x0b\x0c\x85\xa0\u3000\u1680\u2007",
    "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "[MASK][UNK] [PAD] <s> ␣▁ĠĊ \ufffd\ue000\U0010ffff",
]


def mixed_line(rng: random.Random) -> str:
    """Return a line of about 30 characters at most, of one script or of several, or of random bytes."""
    kind = rng.random()
    if kind < 0.15:
        return rng.randbytes(rng.randint(0, 30)).decode("latin-1")
    if kind < 0.25:
        return rng.randbytes(rng.randint(0, 30)).decode("utf-8", "replace")
    n_pieces = rng.randint(0, 4)
    pieces = []
    for _ in range(n_pieces):
        alphabet = rng.choice(ALPHABETS)
        start = rng.randrange(len(alphabet))
        pieces.append(alphabet[start : start + rng.randint(1, 12)] + rng.choice(["", " ", "  ", "\n"]))
    return "".join(pieces)


@pytest.fixture(scope="session")
def mixed_lines() -> list[str]:
    rng = random.Random(0)
    return [mixed_line(rng) for _ in range(10_000)]


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """Python's own documentation: 0.7 MB of English that every Python has."""
    return list(topics.values())


@pytest.fixture(scope="session")
def tokenizers_by_scheme(documents: list[str], mixed_lines: list[str]) -> dict[Scheme, Tokenizer]:
    """One tokenizer of each scheme, trained on English and a little text of other scripts."""
    texts = [*documents, *mixed_lines[:1000]]
    return {scheme: Tokenizer.train(texts, vocab_size=2000, scheme=scheme) for scheme in SCHEMES}


@pytest.fixture(scope="session")
def characters() -> Tokenizer:
    """A tokenizer of characters, with the special tokens."""
    return Tokenizer.train([SPEECH], vocab_size=0, scheme="char")


@pytest.fixture(scope="session")
def only_bytes() -> Tokenizer:
    """A byte tokenizer with some merges and without special tokens."""
    return Tokenizer.train([SPEECH], vocab_size=300, special_tokens=())
