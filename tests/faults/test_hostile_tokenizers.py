"""Fault 25: files of tokenizers. Every manifest is correct, as an attacker can write one."""

import base64
import functools
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RustTokenizer

from faults.hostile import TEXT, TOKENIZER, WITHIN_S, refused
from faults.tally import count, record
from glassformer.common.errors import UserError
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.tokenization.validate_tokenizer_json import KNOWN_EXPRESSIONS, TRUST
from tokenization import families

# 25: tokenizers


def test_fault_25_random_bytes_give_a_tokenizer_or_a_sentence(tmp_path: Path) -> None:
    n, seed = count(150, 1000), 25
    originals = [
        Tokenizer.train([TEXT], vocab_size=290).to_json().encode(),
        Tokenizer.train([TEXT], vocab_size=40, scheme="word").to_json().encode(),
        Tokenizer.train([TEXT], vocab_size=0, scheme="whole_words").to_json().encode(),
    ]
    n_loaded = fuzzed(tmp_path / "tokenizer.json", originals, random.Random(seed), n)
    record(25, n, n, f"{seed}; {n_loaded} loaded")


def test_fault_25_random_bytes_in_imported_tokenizers(tmp_path: Path) -> None:
    n, seed = count(200, 2000), 26
    texts = [TEXT] * 20
    kinds = (families.bert(texts, lowercase=True), families.llama_3(texts), families.llama_2(texts, legacy=True))
    originals = [Tokenizer.imported(rust.to_str(), roles).to_json().encode() for rust, roles in kinds]
    unigram, roles = families.t5(texts)
    unigram.normalizer = normalizers.NFKC()  # the map is as large as all other parts together: see below
    originals.append(Tokenizer.imported(unigram.to_str(), roles).to_json().encode())
    n_loaded = fuzzed(tmp_path / "tokenizer.json", originals, random.Random(seed), n)
    record(25, n, n, f"{seed}; {n_loaded} loaded")


def fuzzed(path: Path, originals: list[bytes], rng: random.Random, n: int) -> int:
    """Load files with random bytes, which work or are refused in a sentence; return how many load."""
    n_loaded = 0
    for _ in range(n):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.choice((1, 1, 2, 8))):
            place = rng.randrange(len(data))
            data[place : place + rng.choice((0, 1, 1, 1, 50))] = rng.randbytes(rng.choice((0, 1, 1, 1, 3)))
        path.write_bytes(data)
        begin = time.process_time()
        try:
            tokenizer = Tokenizer.load(path)
            use(tokenizer)
            n_loaded += 1
        except UserError as error:
            assert "\n" not in str(error)
        assert time.process_time() - begin < WITHIN_S
    return n_loaded


def use(tokenizer: Tokenizer) -> None:
    for special in ((), tokenizer.special_tokens):
        ids = tokenizer.encode("to be [MASK] é </s> 日本 🙂", allow_special=special)
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
    tokenizer.decode(range(tokenizer.vocab_size))
    frames = tokenizer.frames
    assert all(0 <= i < tokenizer.vocab_size for i in [*frames.text.around([]), *frames.pair.around_pair([], [])[0]])
    assert len(tokenizer.pieces) == len(tokenizer.tokens(range(tokenizer.vocab_size))) == tokenizer.vocab_size


def test_fault_25_a_damaged_map_of_characters_gives_ids_or_a_sentence() -> None:
    """The library does not check the offsets in the map, so it may fail only when a text is encoded."""
    whole = families.precompiled()
    if whole is None:
        pytest.skip("needs the map that comes with sentencepiece")
    n, seed = count(30, 300), 27
    rng = random.Random(seed)
    rust, roles = families.t5([TEXT] * 20)
    description = json.loads(rust.to_str())
    n_encoded = 0
    for _ in range(n):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 100, 20_000))):
            data[rng.randrange(4, len(data) - 1)] = rng.randrange(256)
        damaged = {"type": "Precompiled", "precompiled_charsmap": families.charsmap_text(bytes(data))}
        begin = time.process_time()
        try:
            use(Tokenizer.imported(json.dumps({**description, "normalizer": damaged}), roles))
            n_encoded += 1
        except UserError as error:
            assert "\n" not in str(error)
        assert time.process_time() - begin < WITHIN_S
    record(25, n, n, f"{seed}; {n_encoded} loaded")


TOKENIZER_ATTACKS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "an id of 4e9": (lambda d: d["model"]["vocab"].update(zz=4 * 10**9), "without a gap"),
    "an id of 1e40": (lambda d: d["model"]["vocab"].update(zz=10**39), "model.vocab is not an object"),
    "an id below 0": (lambda d: d["model"]["vocab"].update(zz=-1), "model.vocab is not an object"),
    "an id twice": (lambda d: d["model"]["vocab"].update(zz=0), "without a gap"),
    "an id that is a fraction": (lambda d: d["model"]["vocab"].update(zz=1.5), "model.vocab is not an object"),
    "two ids": (lambda d: d["added_tokens"][0].update(id=5), "'[PAD]' has id 5 in added_tokens and 0"),
    "an added id of 1e9": (lambda d: d["added_tokens"].append(added("[X]", 10**9)), "without a gap"),
    "a token twice": (lambda d: d["added_tokens"].append(d["added_tokens"][0]), "has a token twice"),
    "an empty token": (lambda d: d["added_tokens"].append(added("", 47)), "has no content"),
    "a token that is a letter": (lambda d: d["added_tokens"].append(added("e", d["model"]["vocab"]["e"])), "too short"),
    "a damaged map of characters": (
        lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "its map of characters (Precompiled) is damaged",
    ),
    "a map of characters that points behind its end": (
        lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "/////wAA"}),
        "its map of characters (Precompiled) is damaged",
    ),
    "a map that makes a book of a letter": (
        lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap(b"a" * 1000 + b"\0")}),
        "more than 64 bytes",
    ),
    "a text that doubles": (lambda d: d.update(normalizer=replaced({"String": "a"}, "aa")), "at most one character"),
    "a text that doubles at every place": (
        lambda d: d.update(normalizer=replaced({"String": ""}, "a")),
        "at most one character",
    ),
    "a text that begins with a book": (
        lambda d: d.update(normalizer={"type": "Prepend", "prepend": "a" * 1000}),
        "Prepend may use at most one character",
    ),
    "more parts than anybody needs": (
        lambda d: d.update(normalizer={"type": "Sequence", "normalizers": [{"type": "NFKD"}] * 100}),
        "103 parts that change or split text; at most 64",
    ),
    "a part from nowhere": (
        lambda d: d.update(normalizer={"type": "Python"}),
        "normalizer has a part of type Python",
    ),
    "a part without a type, which the library guesses": (
        lambda d: d.update(normalizer={"pattern": {"String": "a"}, "content": "a" * 1000}),
        "its normalizer has a part of type None",
    ),
    "a part of another place, whose type the library guesses": (
        lambda d: d.update(normalizer=replaced({"String": "a"}, "a" * 1000) | {"type": "Metaspace"}),
        "its normalizer has a part of type Metaspace",
    ),
    "a text that doubles byte by byte": (
        lambda d: d.update(normalizer={"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 40}),
        "40 parts of type ByteLevel; only one is supported",
    ),
    "a text that doubles before it is split": (
        lambda d: d.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [LEVEL] * 40}),
        "40 parts of type ByteLevel; only one is supported",
    ),
    "a map of characters upon a map": (
        lambda d: d.update(
            normalizer={
                "type": "Sequence",
                "normalizers": [{"type": "Precompiled", "precompiled_charsmap": charsmap(b"aaa\0")}] * 9,
            }
        ),
        "9 parts of type Precompiled; only one is supported",
    ),
    "a token that stands for a million": (
        lambda d: d.update(post_processor=template([text("A", 0)], [0] * 10**6)),
        "more than 64 special tokens to a text",
    ),
    "thousands of tokens around a text": (
        lambda d: d.update(post_processor=template([*[special("x")] * 10**4, text("A", 0)], [0])),
        "more than 64 special tokens to a text",
    ),
    "a piece that begins with a book": (
        lambda d: d.update(model=pieces_of_words(continuing_subword_prefix="#" * 10**6)),
        "of pieces has 1,000,000 characters, more than 64",
    ),
    "words of a million characters": (
        lambda d: d.update(model=pieces_of_words(max_input_chars_per_word=10**6)),
        "max_input_chars_per_word: expected at most 256, got 1000000",
    ),
    "an unknown piece out of range": (
        lambda d: d.update(model=unigram(unk_id=10**18)),
        "unk_id: expected an id below 14, got 1000000000000000000",
    ),
    "an unknown piece below 0": (lambda d: d.update(model=unigram(unk_id=-1)), "got -1"),
    "a score of 1e40": (lambda d: d.update(model=unigram(vocab=[["a", 1e40]])), "no text or no score"),
    "a piece of nothing": (lambda d: d.update(model=unigram(vocab=[["", 0.0]])), "no text or no score"),
    "a piece twice": (lambda d: d.update(model=unigram(vocab=[["a", 0.0], ["a", 1.0]])), "has a piece twice"),
    "pieces that are none": (lambda d: d.update(model=unigram(vocab=[[], 5])), "not a list of pieces"),
    "a space of two characters": (
        lambda d: d.update(pre_tokenizer={"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always"}),
        "not a valid tokenizer.json",
    ),
    "roles that are none": (lambda d: d["model"].update(roles={"king": "[PAD]"}), "roles: expected an object"),
    "a role that is no token": (lambda d: d["model"].update(roles={"pad": "<pad>"}), "its pad token '<pad>' is not in"),
    "a frame out of the vocabulary": (
        lambda d: d.update(
            post_processor={"type": "BertProcessing", "sep": ["x", 10**6], "cls": ["y", 10**6]}, model=unigram()
        ),
        "adds a token that is not in its vocabulary",
    ),
    "a frame in another order": (
        lambda d: d.update(post_processor=template([text("A", 0), text("A", 0)]), model=unigram()),
        "must put text A before text B, each once",
    ),
    "merges of nothing": (lambda d: d["model"].update(merges=[["x", "q"]]), "not a valid tokenizer.json"),
    "merges of three": (lambda d: d["model"].update(merges=[["t", "o", " "]]), "not a valid tokenizer.json"),
    "parts in parts": (
        lambda d: d.update(
            pre_tokenizer=functools.reduce(
                lambda inner, _: {"type": "Sequence", "pretokenizers": [inner]}, range(100), d["pre_tokenizer"]
            )
        ),
        "nested deeper than 64",
    ),
}
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SLOW = [
    "(a+)+$",
    "(a|a)*$",
    "(a|aa)+$",
    "(.*a){30}",
    r"(\s*)*x",
    "((a{1000}){1000}){1000}",
    r"^(([a-z])+.)+[A-Z]$",
    "\\",
]


def added(content: str, number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, "special": True, **flags}


def charsmap(targets: bytes) -> str:
    """Return a map of characters with an empty trie, as text of the file."""
    return base64.b64encode((1024).to_bytes(4, "little") + bytes(1024) + targets).decode()


def replaced(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def unigram(**change: Any) -> dict[str, Any]:
    pieces = [[token, 0.0] for token in TOKENIZER.vocab]
    return {"type": "Unigram", "unk_id": 1, "vocab": pieces, "byte_fallback": False, **change}


def pieces_of_words(**change: Any) -> dict[str, Any]:
    vocab = dict(TOKENIZER.vocab)
    return {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": vocab, **change}


def template(single: list[Any], ids: list[int] | None = None) -> dict[str, Any]:
    tokens = {} if ids is None else {"x": {"id": "x", "ids": ids, "tokens": ["x"] * len(ids)}}
    pair = [text("A", 0), text("B", 1)]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def special(token: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": 0}}


def text(name: str, type_id: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": type_id}}


@pytest.mark.parametrize("attack", TOKENIZER_ATTACKS)
def test_fault_25_a_wrong_tokenizer_is_refused(tmp_path: Path, attack: str) -> None:
    change, words = TOKENIZER_ATTACKS[attack]
    description = json.loads(TOKENIZER.to_json())
    del description["model"]["frequencies"]
    change(description)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(description))
    refused(lambda: Tokenizer.load(path), "tokenizer.json", words)
    record(25, 1, 1, "none")


def test_fault_25_a_token_without_bytes_is_refused(tmp_path: Path) -> None:
    description = json.loads(Tokenizer.train([TEXT], vocab_size=290).to_json())
    description["model"]["vocab"]["日"] = len(description["model"]["vocab"])
    del description["model"]["frequencies"]
    refused(lambda: Tokenizer.from_json(json.dumps(description)), "'日', which represents no byte")
    record(25, 1, 1, "none")


@pytest.mark.parametrize("expression", sorted(KNOWN_EXPRESSIONS))
def test_fault_25_every_known_expression_ends(expression: str) -> None:
    """Long runs of one kind of character, with and without another character after them, make engines backtrack."""
    splitting = pre_tokenizers.Split(Regex(expression), "isolated")
    n = count(5_000, 100_000)
    for unit in ("a", "A", "aA", "'s", "1", " ", "\n", " \n", "\t ", "!", " !", "\u0301", "字", "ǅ", "ʰ", "_", "\r"):
        for end in ("", "!", "a", "\n", " "):
            run = unit * (n // len(unit)) + end
            begin = time.process_time()
            chunks = splitting.pre_tokenize_str(run)
            assert time.process_time() - begin < WITHIN_S
            assert "".join(chunk for chunk, _ in chunks) == run
    record(25, 1, 1, "none")


@pytest.mark.parametrize("expression", SLOW)
def test_fault_25_an_exponential_expression_is_never_compiled(tmp_path: Path, expression: str) -> None:
    pattern = {"Regex": expression}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    replaced = {"type": "Replace", "pattern": pattern, "content": "x"}
    parts = {
        "pre_tokenizer": [split, {"type": "Sequence", "pretokenizers": [split]}],
        "normalizer": [
            replaced,
            {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [replaced]}]},
        ],
        "decoder": [replaced],
    }
    for name, values in parts.items():
        for value in values:
            description = json.loads(TOKENIZER.to_json()) | {name: value}
            (tmp_path / "t.json").write_text(json.dumps(description))
            refused(
                lambda: Tokenizer.load(tmp_path / "t.json"),
                "is unknown and could take exponential time",
                "GLASSFORMER_TRUST_TOKENIZERS=1",
            )
    record(25, 5, 5, "none")


OWN = {"type": "Split", "pattern": {"Regex": "[0-9]+|[^0-9]+"}, "behavior": "Isolated", "invert": False}


def with_own_expression() -> str:
    description = json.loads(TOKENIZER.to_json())
    del description["model"]["frequencies"]
    parts = [OWN, description["pre_tokenizer"]]
    return json.dumps(description | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": parts}})


def test_fault_25_expressions_of_a_trusted_file_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    text = with_own_expression()
    monkeypatch.setenv(TRUST, "1")
    tokenizer = Tokenizer.imported(text, {})
    for sample in ("the 12 cats", TEXT):
        assert tokenizer.encode(sample) == RustTokenizer.from_str(text).encode(sample).ids
    monkeypatch.delenv(TRUST)  # the saved file is not trusted
    refused(lambda: Tokenizer.from_json(tokenizer.to_json()), "is unknown and could take exponential time")
    record(25, 1, 1, "none")


@pytest.mark.parametrize("value", ["", "0", "true"])
def test_fault_25_trust_needs_the_exact_value(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST, value)
    refused(lambda: Tokenizer.imported(with_own_expression(), {}), "is unknown and could take exponential time")
    record(25, 1, 1, "none")


@pytest.mark.parametrize("change", [{"Regex": "("}, {"Regex": 7}])
def test_fault_25_a_trusted_expression_must_be_valid(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST, "1")
    text = json.dumps(json.loads(with_own_expression()) | {"pre_tokenizer": OWN | {"pattern": change}})
    refused(lambda: Tokenizer.imported(text, {}), "")
    record(25, 1, 1, "none")


OTHERS = sorted(attack for attack, (_, words) in TOKENIZER_ATTACKS.items() if "is unknown" not in words)


@pytest.mark.parametrize("attack", OTHERS)
def test_fault_25_trust_accepts_only_expressions(tmp_path: Path, attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST, "1")
    test_fault_25_a_wrong_tokenizer_is_refused(tmp_path, attack)
