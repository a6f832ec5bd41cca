"""Tokenizers of other people's models, held equal to `transformers` on the same file."""

import random
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from faults.tally import count
from glassformer.tokenization import Tokenizer
from tokenization.families import families

NAMES = ["bert", "bert-cased", "gpt2", "roberta", "llama-3", "llama-2", "llama-2-legacy", "t5", "qwen"]


@pytest.fixture(scope="module")
def found(documents: list[str], mixed_lines: list[str]) -> dict[str, Any]:
    return families([*documents[:60], *mixed_lines[:1000]])


@pytest.fixture(params=NAMES)
def pair(request: pytest.FixtureRequest, found: dict[str, Any], tmp_path: Path) -> tuple[Tokenizer, Any]:
    """Ours and that of `transformers`, both read from the folder that `transformers` wrote."""
    rust, roles = found[request.param]
    named = {f"{role}_token": token for role, token in roles.items()}
    PreTrainedTokenizerFast(tokenizer_object=rust, **named).save_pretrained(tmp_path)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    return Tokenizer.imported((tmp_path / "tokenizer.json").read_text("utf-8"), roles), theirs


def lines(mixed_lines: list[str]) -> list[str]:
    return mixed_lines[: count(1500, 10_000)]


def with_special(texts: list[str], special: list[str]) -> list[str]:
    """Special tokens put into texts anywhere, with and without space around them."""
    rng = random.Random(1)
    mixed = []
    for text in texts:
        for _ in range(rng.randint(0, 3)):
            place = rng.randint(0, len(text))
            text = (
                text[:place] + rng.choice(["", " ", "  "]) + rng.choice(special) + rng.choice(["", " "]) + text[place:]
            )
        mixed.append(text)
    return mixed


def plain(texts: list[str], special: list[str]) -> list[str]:
    return [text for text in texts if not any(token in text for token in special)]


def test_ids_and_texts_are_those_of_transformers(pair: tuple[Tokenizer, Any], mixed_lines: list[str]) -> None:
    ours, theirs = pair
    texts = plain(lines(mixed_lines), list(ours.special_tokens))
    ids = ours.encode_batch(texts)
    assert ids == theirs(texts, add_special_tokens=False)["input_ids"]
    assert len(ours.vocab) == len(theirs) and ours.vocab == theirs.get_vocab()
    decoded = theirs.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert list(map(ours.decode, ids)) == decoded


def test_special_tokens_in_a_text_are_those_of_transformers(
    pair: tuple[Tokenizer, Any], mixed_lines: list[str]
) -> None:
    ours, theirs = pair
    texts = with_special(lines(mixed_lines)[:1000], list(ours.special_tokens))
    ids = ours.encode_batch(texts, allow_special=ours.special_tokens)
    assert ids == theirs(texts, add_special_tokens=False)["input_ids"]
    for skip in (True, False):
        decoded = theirs.batch_decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert [ours.decode(row, skip_special=skip) for row in ids] == decoded


def test_special_tokens_in_a_text_are_text_unless_allowed(pair: tuple[Tokenizer, Any], mixed_lines: list[str]) -> None:
    ours, _ = pair
    special = {ours.vocab[token] for token in ours.special_tokens} - {ours.unk_id}
    texts = with_special(mixed_lines[:500], list(ours.special_tokens))
    assert not any(special.intersection(ids) for ids in ours.encode_batch(texts))
    one = ours.special_tokens[0]
    for text in (f"a {one} b", f"{one}{one}", one):
        ids = ours.encode(text, allow_special=[one])
        assert ids.count(ours.vocab[one]) == text.count(one)
        assert not special.difference([ours.vocab[one]]).intersection(ids)


def test_frames_are_those_of_transformers(pair: tuple[Tokenizer, Any], mixed_lines: list[str]) -> None:
    ours, theirs = pair
    texts = plain(mixed_lines[:200], list(ours.special_tokens))
    first, second = texts[::2], texts[1::2]
    for a, b in zip(first, second, strict=False):
        one, two = ours.encode(a), ours.encode(b)
        assert ours.frames.text.around(one) == theirs(a)["input_ids"]
        if not b:
            continue  # which transformers takes for no text
        both = theirs(a, b, return_token_type_ids=True)
        assert ours.frames.pair.around_pair(one, two) == (both["input_ids"], both["token_type_ids"])


def test_the_file_alone_is_enough(pair: tuple[Tokenizer, Any], mixed_lines: list[str], tmp_path: Path) -> None:
    ours, theirs = pair
    path = tmp_path / "ours" / "tokenizer.json"
    path.parent.mkdir()
    ours.save(path)
    again = Tokenizer.load(path)
    assert again.to_json() == ours.to_json() and again.roles == ours.roles and again.frames == ours.frames
    for role in ("pad", "unk", "bos", "eos", "cls", "sep", "mask"):
        named = getattr(theirs, f"{role}_token_id")
        assert getattr(again, f"{role}_id") == getattr(ours, f"{role}_id") == named
    texts = with_special(mixed_lines[:200], list(ours.special_tokens))
    everything = {"allow_special": ours.special_tokens}
    assert again.encode_batch(texts, **everything) == ours.encode_batch(texts, **everything)
    read = PreTrainedTokenizerFast(tokenizer_file=str(path))
    assert read(texts, add_special_tokens=False)["input_ids"] == ours.encode_batch(texts, **everything)


def test_a_stream_gives_the_text_of_the_whole(pair: tuple[Tokenizer, Any], mixed_lines: list[str]) -> None:
    ours, _ = pair
    for line in mixed_lines[: count(400, 3000)]:
        ids = ours.encode(line)
        stream = ours.stream()
        shown = [stream.push(i) for i in ids]
        whole = ours.decode(ids)
        assert "".join(shown) + stream.flush() == whole
        if "\ufffd" not in whole:
            assert "\ufffd" not in "".join(shown)
