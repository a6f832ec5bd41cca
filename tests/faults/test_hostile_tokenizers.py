"""Fault 25: files of tokenizers. Every manifest is correct, since anybody can compute one."""

import functools
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.hostile import TEXT, TOKENIZER, WITHIN_S, refused
from faults.tally import count, record
from glassformer.errors import UserError
from glassformer.tokenization.tokenizer import Tokenizer

# 25: tokenizers


def test_fault_25_random_bytes_in_a_tokenizer_give_a_tokenizer_or_a_sentence(tmp_path: Path) -> None:
    n, seed = count(150, 1000), 25
    rng = random.Random(seed)
    originals = [
        Tokenizer.train([TEXT], vocab_size=290).to_json().encode(),
        Tokenizer.train([TEXT], vocab_size=40, flavour="word").to_json().encode(),
        Tokenizer.train([TEXT], vocab_size=0, flavour="whole_words").to_json().encode(),
    ]
    path = tmp_path / "tokenizer.json"
    n_loaded = 0
    for _ in range(n):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.choice((1, 1, 2, 8))):
            place = rng.randrange(len(data))
            data[place : place + rng.choice((0, 1, 1, 1, 50))] = rng.randbytes(rng.choice((0, 1, 1, 1, 3)))
        path.write_bytes(data)
        begin = time.monotonic()
        try:
            tokenizer = Tokenizer.load(path)
            ids = tokenizer.encode("to be [MASK] é")
            assert all(0 <= i < tokenizer.vocab_size for i in ids)
            tokenizer.decode(range(tokenizer.vocab_size))
            n_loaded += 1
        except UserError as error:
            assert "\n" not in str(error)
        assert time.monotonic() - begin < WITHIN_S
    record(25, n, n, f"{seed}; {n_loaded} loaded")


TOKENIZER_ATTACKS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "an id of 4e9": (lambda d: d["model"]["vocab"].update(zz=4 * 10**9), "without a gap"),
    "an id of 1e40": (lambda d: d["model"]["vocab"].update(zz=10**39), "its vocabulary is no table"),
    "an id below 0": (lambda d: d["model"]["vocab"].update(zz=-1), "its vocabulary is no table"),
    "an id twice": (lambda d: d["model"]["vocab"].update(zz=0), "without a gap"),
    "an id that is a fraction": (lambda d: d["model"]["vocab"].update(zz=1.5), "its vocabulary is no table"),
    "two ids": (lambda d: d["added_tokens"][0].update(id=5), "'[PAD]' has the id 5, and 0"),
    "an added id of 1e9": (lambda d: d["added_tokens"].append(added("[X]", 10**9)), "without a gap"),
    "a token twice": (lambda d: d["added_tokens"].append(d["added_tokens"][0]), "named twice"),
    "an empty token": (lambda d: d["added_tokens"].append(added("", 47)), "have no content"),
    "a token that is a letter": (lambda d: d["added_tokens"].append(added("e", d["model"]["vocab"]["e"])), "too short"),
    "a damaged map of characters": (
        lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "a part of type Precompiled",
    ),
    "merges of nothing": (lambda d: d["model"].update(merges=[["x", "q"]]), "not a whole tokenizer.json"),
    "merges of three": (lambda d: d["model"].update(merges=[["t", "o", " "]]), "not a whole tokenizer.json"),
    "parts in parts": (
        lambda d: d.update(
            pre_tokenizer=functools.reduce(
                lambda inner, _: {"type": "Sequence", "pretokenizers": [inner]}, range(100), d["pre_tokenizer"]
            )
        ),
        "nested deeper than 64",
    ),
}
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


@pytest.mark.parametrize("attack", TOKENIZER_ATTACKS)
def test_fault_25_a_tokenizer_that_cannot_be(tmp_path: Path, attack: str) -> None:
    change, words = TOKENIZER_ATTACKS[attack]
    description = json.loads(TOKENIZER.to_json())
    del description["model"]["frequencies"]
    change(description)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(description))
    refused(lambda: Tokenizer.load(path), "tokenizer.json", words)
    record(25, 1, 1, "none")


def test_fault_25_a_token_that_no_byte_spells(tmp_path: Path) -> None:
    description = json.loads(Tokenizer.train([TEXT], vocab_size=290).to_json())
    description["model"]["vocab"]["日"] = len(description["model"]["vocab"])
    del description["model"]["frequencies"]
    refused(lambda: Tokenizer.from_json(json.dumps(description)), "'日', which stands for no byte")
    record(25, 1, 1, "none")


@pytest.mark.parametrize("expression", SLOW)
def test_fault_25_an_expression_that_backtracks_for_ever_is_never_compiled(tmp_path: Path, expression: str) -> None:
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
            refused(lambda: Tokenizer.load(tmp_path / "t.json"), "expression", "none of ours")
    record(25, 5, 5, "none")
