"""`Tokenizer`: the file, special tokens, decoding, streams, templates, padding, dropout, and what it refuses."""

import codecs
import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from glassformer.errors import UserError
from glassformer.tokenization import FLAVOURS, SPECIAL_TOKENS, Flavour, Template, Tokenizer, pad, truncate
from glassformer.tokenization.decoding import readable
from glassformer.tokenization.pretokenize import count_chunks, pipeline

TEXT = "to be, or not to be, that is the question:\nwhether 'tis nobler in the mind to suffer"

BYTES = Tokenizer.train([TEXT], vocab_size=300, special_tokens=())

Trained = dict[Flavour, Tokenizer]


@pytest.fixture(scope="module")
def characters() -> Tokenizer:
    return Tokenizer.train([TEXT], vocab_size=0, flavour="char")


# Training


def test_special_tokens_have_the_first_ids(characters: Tokenizer) -> None:
    ids = [characters.token_to_id(token) for token in SPECIAL_TOKENS]
    assert ids == [0, 1, 2, 3, 4, 5, 6]
    assert characters.pad_id == 0
    assert characters.unk_id == 1
    assert (characters.bos_id, characters.eos_id) == (2, 3)
    assert (characters.cls_id, characters.sep_id, characters.mask_id) == (4, 5, 6)


def test_a_tokenizer_of_characters_has_the_alphabet_and_no_merges(characters: Tokenizer) -> None:
    assert characters.merges == []
    assert list(characters.vocab)[7:] == sorted(set(TEXT))
    exact = Tokenizer.train([TEXT], vocab_size=characters.vocab_size, flavour="char")
    assert exact.vocab == characters.vocab
    assert len(characters.encode(TEXT)) == len(TEXT)


@pytest.mark.parametrize("learner", ["glassformer", "tokenizers"])
def test_the_vocabulary_is_smaller_than_asked_for_when_the_text_gives_out(learner: Any) -> None:
    tokenizer = Tokenizer.train(["abab"], vocab_size=500, flavour="char", learner=learner)
    assert tokenizer.merges == [("a", "b")]
    assert tokenizer.vocab_size == 7 + 2 + 1


@pytest.mark.parametrize("learner", ["glassformer", "tokenizers"])
@pytest.mark.parametrize(
    ("texts", "flavour", "vocab_size", "message"),
    [
        ([], "byte", 300, "no text"),
        (["", ""], "byte", 300, "no text"),
        ([" \n "], "word", 300, "no text"),
        ([TEXT], "byte", 262, "256 symbols and there are 7 special tokens; ask for 263"),
        (["abc"], "char", 9, "ask for 10 or more"),
        (["ab", "c\ud800d"], "byte", 300, r"lone surrogate, U\+D800 at character 1"),
    ],
)
def test_bad_training_is_named(learner: Any, texts: list[str], flavour: Flavour, vocab_size: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Tokenizer.train(texts, vocab_size=vocab_size, flavour=flavour, learner=learner)


def test_bad_special_tokens_and_flavours_are_named() -> None:
    with pytest.raises(UserError, match=r"'a' is too short"):
        Tokenizer.train([TEXT], vocab_size=300, special_tokens=["a"])
    with pytest.raises(UserError, match="named twice"):
        Tokenizer.train([TEXT], vocab_size=300, special_tokens=["[PAD]", "[PAD]"])
    with pytest.raises(UserError, match="unknown tokenizer flavour 'bytes'; choose one of byte, char"):
        Tokenizer.train([TEXT], vocab_size=300, flavour="bytes")  # type: ignore[arg-type]


def test_training_reads_an_iterator_once_and_keeps_no_text() -> None:
    lines = (f"line {i % 10}\n" for i in range(1000))
    assert count_chunks(lines, "char", characters_only=True).total() == 7 * 1000
    assert next(lines, None) is None
    assert len(count_chunks((f"line {i % 10}\n" for i in range(1000)), "char")) == 10


def test_pitfall_22_a_tokenizer_knows_only_the_text_it_was_given() -> None:
    train, validation = "aaaa bbbb", "aaaa zzzz"
    tokenizer = Tokenizer.train([train], vocab_size=0, flavour="char")
    assert "z" not in tokenizer.vocab
    assert tokenizer.encode(validation)[-1] == tokenizer.unk_id


# The file


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_save_and_load_give_the_same_tokenizer(
    flavour: Flavour, tokenizers_by_flavour: Trained, mixed_lines: list[str], tmp_path: Path
) -> None:
    tokenizer = tokenizers_by_flavour[flavour]
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert loaded.flavour == flavour
    assert loaded.vocab == tokenizer.vocab
    assert loaded.frequencies == tokenizer.frequencies
    assert loaded.encode_batch(mixed_lines[:500]) == tokenizer.encode_batch(mixed_lines[:500])
    assert loaded.encode_longest_match(TEXT) == tokenizer.encode_longest_match(TEXT)
    assert loaded.to_json() == tokenizer.to_json() == path.read_text(encoding="utf-8")
    assert loaded.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_same_text_gives_the_same_bytes() -> None:
    first = Tokenizer.train([TEXT, "more"], vocab_size=300)
    again = Tokenizer.train(["more", TEXT], vocab_size=300)
    assert first.to_json() == again.to_json()
    assert first.fingerprint != Tokenizer.train([TEXT], vocab_size=299).fingerprint


def edited(change: dict[str, Any], part: str = "model") -> str:
    description = json.loads(Tokenizer.train([TEXT], vocab_size=50, flavour="char").to_json())
    description[part].update(change)
    return json.dumps(description)


def test_a_file_of_another_kind_is_refused_with_the_reason(tmp_path: Path) -> None:
    words = models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")
    cases = {
        "not a whole tokenizer.json": ["", "{", "[]", "{}", '{"model": {}}', edited({"frequencies": "many"})],
        "its model is WordLevel": [tokenizers.Tokenizer(words).to_str()],
        "splits text in a way that is none of": [
            tokenizers.Tokenizer(models.BPE({"a": 0}, [])).to_str(),
            edited({"pattern": {"String": "\t"}}, "pre_tokenizer"),
        ],
        "sets byte_fallback to True": [edited({"byte_fallback": True})],
        "sets dropout to 0.5": [edited({"dropout": 0.5})],
        "fuse_unk": [edited({"fuse_unk": False})],
        "3 frequencies for": [edited({"frequencies": [1, 2, 3]})],
        "without a gap": [edited({"vocab": {"[PAD]": 0, "[UNK]": 1, "a": 1000}, "merges": []})],
    }
    for message, texts in cases.items():
        for text in texts:
            path = tmp_path / "tokenizer.json"
            path.write_text(text, encoding="utf-8")
            with pytest.raises(UserError, match=message) as caught:
                Tokenizer.load(path)
            assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file: .*tokenizer\.json"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_a_file_whose_settings_would_cut_or_fill_text_does_neither(characters: Tokenizer) -> None:
    rust = tokenizers.Tokenizer.from_str(characters.to_json())
    rust.enable_truncation(3)
    rust.enable_padding(length=20)
    assert len(Tokenizer.from_json(rust.to_str()).encode("to be or")) == 8


# Unknown characters


@pytest.mark.parametrize("flavour", ["char", "word", "whitespace"])
def test_pitfall_27_unknown_characters_follow_the_stated_rule(flavour: Flavour) -> None:
    tokenizer = Tokenizer.train([TEXT], vocab_size=0, flavour=flavour)
    unk = tokenizer.unk_id
    ids = tokenizer.encode("b☃🙂e é")
    assert [i == unk for i in ids].count(True) == 2
    assert ids[:3] == [tokenizer.vocab["b"], unk, tokenizer.vocab["e"]]
    assert "[UNK]" in tokenizer.decode(ids)
    assert tokenizer.encode_longest_match("b☃🙂e é") == ids


@pytest.mark.parametrize("flavour", ["char", "word", "whitespace"])
def test_pitfall_27_without_unk_an_unknown_character_is_an_error_that_names_it(flavour: Flavour) -> None:
    tokenizer = Tokenizer.train([TEXT], vocab_size=60, flavour=flavour, special_tokens=())
    assert tokenizer.encode("to be") == tokenizer.reference.encode("to be")
    message = r"the character '☃' \(U\+2603\) is not in the vocabulary"
    for _ in range(2):  # a character that was refused once is refused again
        with pytest.raises(UserError, match=message):
            tokenizer.encode("to ☃ be")
    with pytest.raises(UserError, match=message):
        tokenizer.encode_batch(["to be", "or ☃"])
    with pytest.raises(UserError, match=message):
        tokenizer.encode("☃", dropout=0.5, seed=0)
    with pytest.raises(UserError, match=message):
        tokenizer.encode_longest_match("☃")
    with pytest.raises(UserError, match=message):
        tokenizer.explain("☃")


def test_the_mark_of_a_word_end_cannot_be_forged() -> None:
    tokenizer = Tokenizer.train(["a␣b c"], vocab_size=0, flavour="word", special_tokens=())
    assert tokenizer.tokens(tokenizer.encode("a␣b")) == ["a", "\ufffd", "b", "</w>"]
    with pytest.raises(UserError, match=r"U\+FFFD"):
        Tokenizer.train(["a b"], vocab_size=0, flavour="word", special_tokens=()).encode("a␣b")


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_lone_surrogate_is_an_error_that_names_it(flavour: Flavour, tokenizers_by_flavour: Trained) -> None:
    tokenizer = tokenizers_by_flavour[flavour]
    with pytest.raises(UserError, match=r"lone surrogate, U\+DCFF at character 2"):
        tokenizer.encode("ab\udcff")
    with pytest.raises(UserError, match=r"lone surrogate"):
        tokenizer.encode_batch(["ab", "\ud800"])
    with pytest.raises(UserError, match=r"lone surrogate"):
        tokenizer.explain("\ud800")


# Decoding


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_pitfall_27_bytes_lose_nothing(text: str) -> None:
    assert BYTES.decode(BYTES.encode(text)) == text


def test_pitfall_27_bytes_lose_nothing_on_mixed_lines(tokenizers_by_flavour: Trained, mixed_lines: list[str]) -> None:
    tokenizer = tokenizers_by_flavour["byte"]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(mixed_lines)] == mixed_lines
    every_seventh = "".join(chr(i) for i in range(0, 0x110000, 7) if not 0xD800 <= i < 0xE000)
    assert tokenizer.decode(tokenizer.encode(every_seventh)) == every_seventh


def test_characters_that_are_known_come_back(mixed_lines: list[str]) -> None:
    tokenizer = Tokenizer.train(mixed_lines, vocab_size=0, flavour="char", special_tokens=())
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(mixed_lines)] == mixed_lines


def test_pitfall_29_words_come_back_with_one_space_between_them(tokenizers_by_flavour: Trained) -> None:
    tokenizer = tokenizers_by_flavour["word"]
    for text in ["", "one", "  two \t words\n", "isn't it?  Yes.", " "]:
        assert tokenizer.decode(tokenizer.encode(text)) == " ".join(text.split())


def test_pitfall_29_whitespace_gives_every_token_apart(tokenizers_by_flavour: Trained) -> None:
    tokenizer = tokenizers_by_flavour["whitespace"]
    ids = tokenizer.encode("The statements,  unlowerable.")
    assert len(ids) > 4  # some word is more than one token
    assert tokenizer.decode(ids) == " ".join(tokenizer.tokens(ids))
    assert tokenizer.decode(ids).replace(" ", "") == "Thestatements,unlowerable."


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_special_tokens_are_left_out_of_a_text_unless_asked_for(
    flavour: Flavour, tokenizers_by_flavour: Trained
) -> None:
    tokenizer = tokenizers_by_flavour[flavour]
    ids = [2, *tokenizer.encode("the"), 3, 0, 0]
    assert tokenizer.decode(ids) == "the"
    assert tokenizer.decode(ids, skip_special=False).replace(" ", "") == "[BOS]the[EOS][PAD][PAD]"
    assert tokenizer.tokens(ids)[-3:] == ["[EOS]", "[PAD]", "[PAD]"]


def test_special_tokens_need_not_be_ascii() -> None:
    tokenizer = Tokenizer.train([TEXT], vocab_size=0, special_tokens=["<début du texte>"])
    (special,) = tokenizer.encode("<début du texte>", allow_special=["<début du texte>"])
    assert tokenizer.decode([special], skip_special=False) == "<début du texte>"
    assert tokenizer.tokens([special]) == ["<début du texte>"]


@pytest.mark.parametrize("wrong", [-1, 10_000])
def test_an_id_out_of_range_is_an_error(wrong: int, characters: Tokenizer) -> None:
    for use in (characters.decode, characters.tokens):
        with pytest.raises(UserError, match=f"{wrong} is not a token id: the vocabulary has the ids 0 to"):
            use([7, wrong])


def test_pitfall_30_the_ids_are_exactly_the_rows_of_an_embedding(tokenizers_by_flavour: Trained) -> None:
    for tokenizer in tokenizers_by_flavour.values():
        assert sorted(tokenizer.vocab.values()) == list(range(tokenizer.vocab_size))
        assert [tokenizer.id_to_token(i) for i in range(tokenizer.vocab_size)] == list(tokenizer.vocab)
        assert tokenizer.vocab_size == len(tokenizer.special_tokens) + len(tokenizer.merges) + len(
            [token for token in tokenizer.vocab if len(token) == 1]
        )


# Streams


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_pitfall_36_a_stream_never_cuts_a_character(
    flavour: Flavour, tokenizers_by_flavour: Trained, mixed_lines: list[str]
) -> None:
    tokenizer = tokenizers_by_flavour[flavour]
    for line in mixed_lines[:2000]:
        ids = tokenizer.encode(line)
        stream = tokenizer.stream()
        shown = [stream.push(i) for i in ids]
        if "\ufffd" not in line and "␣" not in line:
            assert "\ufffd" not in "".join(shown)
        assert "".join(shown) + stream.flush() == tokenizer.decode(ids)


def test_pitfall_36_the_bytes_of_one_character_wait_for_the_last() -> None:
    tokenizer = Tokenizer.train(["x"], vocab_size=0)
    ids = tokenizer.encode("é🙂")
    stream = tokenizer.stream()
    assert [stream.push(i) for i in ids] == ["", "é", "", "", "", "🙂"]
    assert stream.flush() == ""
    assert stream.push(ids[0]) == ""
    assert stream.flush() == "\ufffd"


def test_a_stream_of_any_ids_is_decoded_as_bytes_are(tokenizers_by_flavour: Trained) -> None:
    tokenizer = tokenizers_by_flavour["byte"]
    rust = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randint(0, 20))]
        stream = tokenizer.stream(skip_special=False)
        text = "".join([*map(stream.push, ids), stream.flush()])
        assert text == tokenizer.decode(ids, skip_special=False)
        assert text == rust.decode(ids, skip_special_tokens=False)


def test_readable_bytes() -> None:
    assert readable(b"caf\xc3\xa9 \xe2\x98") == "café <0xE2><0x98>"
    assert readable(codecs.BOM_UTF8) == "\ufeff"


# Special tokens in a text


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_pitfall_28_no_text_gives_a_special_token_unless_allowed(flavour: Flavour, tmp_path: Path) -> None:
    text = "[MASK] is [SEP] not [MASK][UNK] a <token> [PAD]"
    path = tmp_path / "tokenizer.json"
    for learner in ("glassformer", "tokenizers"):
        trained = Tokenizer.train([text] * 50, vocab_size=400, flavour=flavour, learner=learner)  # type: ignore[arg-type]
        trained.save(path)
        for tokenizer in (trained, Tokenizer.load(path)):
            for ids in (
                tokenizer.encode(text),
                *tokenizer.encode_batch([text]),
                tokenizer.reference.encode(text),
                tokenizer.encode_longest_match(text),
                tokenizer.encode(text, dropout=0.5, seed=0),
            ):
                assert min(ids) >= len(SPECIAL_TOKENS)
            ids = tokenizer.encode(text, allow_special=["[MASK]", "[PAD]"])
            assert [i for i in ids if i < len(SPECIAL_TOKENS)] == [6, 6, 0]


def test_pitfall_28_a_file_whose_merges_spell_a_special_token_is_refused() -> None:
    description = json.loads(Tokenizer.train(["[PA [PA D]"], vocab_size=0, flavour="char").to_json())
    vocab = description["model"]["vocab"]
    for token in ["[P", "[PA", "D]"]:
        vocab[token] = len(vocab)
    del description["model"]["frequencies"]
    description["model"]["merges"] = [["[", "P"], ["[P", "A"], ["D", "]"]]
    Tokenizer.from_json(json.dumps(description))
    description["model"]["merges"] += [["[PA", "D]"]]
    with pytest.raises(UserError, match=r"its merges spell \[PAD\]"):
        Tokenizer.from_json(json.dumps(description))


def test_the_longest_of_the_allowed_special_tokens_wins() -> None:
    tokenizer = Tokenizer.train(["<a>b"], vocab_size=0, flavour="char", special_tokens=["<a>", "<a>b"])
    assert tokenizer.encode("<a>b<a>", allow_special=["<a>", "<a>b"]) == [1, 0]


def test_only_special_tokens_can_be_allowed(characters: Tokenizer) -> None:
    with pytest.raises(UserError, match="<s> is not a special token"):
        characters.encode("to be", allow_special=["<s>"])


# Templates, padding, truncation


def test_templates_and_token_types(characters: Tokenizer) -> None:
    template = Template.parse("[CLS] A [SEP] B [SEP]")
    ids, types = characters.encode_template(template, "to", "be")
    t, o, b, e = (characters.vocab[c] for c in "tobe")
    assert ids == [4, t, o, 5, b, e, 5]
    assert types == [0, 0, 0, 0, 1, 1, 1]
    assert characters.encode("to", template=Template.parse("[BOS] A [EOS]")) == [2, t, o, 3]
    assert characters.encode("to") == [t, o]


def test_templates_say_what_is_wrong(characters: Tokenizer) -> None:
    for wrong in ["", "[CLS]", "B A", "A A", "[CLS] B"]:
        with pytest.raises(UserError, match="must name its texts A, B"):
            Template.parse(wrong)
    with pytest.raises(UserError, match="needs <s>, which the tokenizer does not have"):
        characters.encode("to", template=Template.parse("<s> A"))
    with pytest.raises(ValueError, match="needs 2 texts, not 1"):
        characters.encode("to", template=Template.parse("A B"))


def test_padding_on_both_sides() -> None:
    ids, mask = pad([[1, 2, 3], [4], []], pad_id=9, side="left")
    assert ids.tolist() == [[1, 2, 3], [9, 9, 4], [9, 9, 9]]
    assert mask.tolist() == [[True] * 3, [False, False, True], [False] * 3]
    ids, mask = pad([[1, 2, 3], [4]], pad_id=9, max_len=4)
    assert ids.tolist() == [[1, 2, 3, 9], [4, 9, 9, 9]]
    assert (ids.dtype, mask.dtype) == ("int64", "bool")
    assert pad([], pad_id=0)[0].shape == (0, 0)


def test_truncation_is_never_silent() -> None:
    with pytest.raises(UserError, match="row 1 has 3 tokens, more than max_len = 2"):
        pad([[1], [1, 2, 3]], pad_id=0, max_len=2)
    assert pad([[1], [1, 2, 3]], pad_id=0, max_len=2, truncate_side="left")[0].tolist() == [[1, 0], [2, 3]]
    assert pad([[1, 2, 3]], pad_id=0, max_len=2, truncate_side="right")[0].tolist() == [[1, 2]]
    assert truncate([1, 2, 3], 0, "left") == []


def test_the_tokenizer_pads_with_its_own_token(characters: Tokenizer) -> None:
    ids, mask = characters.pad(characters.encode_batch(["to", "b"]))
    assert ids[1, 1] == characters.pad_id
    assert not mask[1, 1]
    with pytest.raises(UserError, match=r"no special token \[PAD\]"):
        BYTES.pad([[1]])


# Dropout, the longest match, explanations, reports


def test_dropout_is_reproducible_and_keeps_the_text(tokenizers_by_flavour: Trained) -> None:
    tokenizer = tokenizers_by_flavour["byte"]
    plain = tokenizer.encode(TEXT)
    drawn = [tokenizer.encode(TEXT, dropout=0.3, seed=seed) for seed in range(5)]
    assert drawn == [tokenizer.encode(TEXT, dropout=0.3, seed=seed) for seed in range(5)]
    assert len({tuple(ids) for ids in drawn}) == 5
    assert all(len(ids) > len(plain) for ids in drawn)
    assert all(tokenizer.decode(ids) == TEXT for ids in drawn)
    assert len(tokenizer.encode(TEXT, dropout=1.0, seed=0)) == len(TEXT)
    with pytest.raises(ValueError, match="seed"):
        tokenizer.encode(TEXT, dropout=0.3)
    with pytest.raises(ValueError, match="probability"):
        tokenizer.encode(TEXT, dropout=1.5, seed=0)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_longest_match_covers_the_text(flavour: Flavour, tokenizers_by_flavour: Trained) -> None:
    tokenizer = tokenizers_by_flavour[flavour]
    replayed, matched = tokenizer.encode(TEXT), tokenizer.encode_longest_match(TEXT)

    def text(ids: list[int]) -> str:
        return "".join(tokenizer.id_to_token(i) for i in ids)

    assert text(matched) == text(replayed) == "".join(pipeline(flavour).chunks(TEXT))
    assert tokenizer.encode_longest_match("a[MASK]", allow_special=["[MASK]"])[-1] == tokenizer.mask_id


def test_explain_shows_the_merges_of_a_word() -> None:
    tokenizer = Tokenizer.train(["low low low lower newer"], vocab_size=0, flavour="word")
    description = json.loads(tokenizer.to_json())
    del description["model"]["frequencies"]
    for left, right in [("l", "o"), ("lo", "w"), ("e", "r"), ("er", "␣")]:
        description["model"]["vocab"][left + right] = len(description["model"]["vocab"])
        description["model"]["merges"].append([left, right])
    tokenizer = Tokenizer.from_json(json.dumps(description))
    low, er = tokenizer.vocab["low"], tokenizer.vocab["er␣"]
    assert str(tokenizer.explain("lower")).splitlines() == [
        "       start  l│o│w│e│r│</w>",
        "     merge 1  lo│w│e│r│</w>    (l + o)",
        "     merge 2  low│e│r│</w>    (lo + w)",
        "     merge 3  low│er│</w>    (e + r)",
        "     merge 4  low│er</w>    (er + </w>)",
        f"         ids  low = {low}  er</w> = {er}",
    ]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_explain_ends_at_the_ids_of_encode(
    flavour: Flavour, tokenizers_by_flavour: Trained, mixed_lines: list[str]
) -> None:
    tokenizer = tokenizers_by_flavour[flavour]
    for line in mixed_lines[:300]:
        explanation = tokenizer.explain(line)
        assert [i for chunk in explanation.chunks for i in chunk.token_ids] == tokenizer.encode(line)
        assert "Ġ" in line or "Ġ" not in str(explanation)


def test_a_report_counts_what_it_says(characters: Tokenizer) -> None:
    report = characters.report(["to be", "é to"])
    assert (report.n_texts, report.n_words, report.n_bytes, report.n_tokens) == (2, 4, 10, 9)
    assert report.tokens_per_word == 9 / 4
    assert report.bytes_per_token == 10 / 9
    assert report.frequencies[characters.vocab["t"]] == 2
    assert report.n_unknown == report.frequencies[1] == 1
    assert report.vocab_size == characters.vocab_size
    assert report.n_unused == characters.vocab_size - 6
    assert len(report.most_frequent) == 6
    assert dict(report.most_frequent)["t"] == 2
    assert "tokens per word  2.250" in str(report)
    assert characters.report([]).bytes_per_token == 0
