"""`Tokenizer`: training, the file, unknown characters, dropout, the longest match, and explanations."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models

from glassformer.common.errors import UserError
from glassformer.tokenization import SCHEMES, SPECIAL_TOKENS, Scheme, Tokenizer
from glassformer.tokenization.chunks import count_chunks
from glassformer.tokenization.schemes import BYTE_TO_CHARACTER, pipeline

Trained = dict[Scheme, Tokenizer]

TEXT = "to be, or not to be, that is the question:\nwhether 'tis nobler in the mind to suffer"


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
    exact = Tokenizer.train([TEXT], vocab_size=characters.vocab_size, scheme="char")
    assert exact.vocab == characters.vocab
    assert len(characters.encode(TEXT)) == len(TEXT)


@pytest.mark.parametrize("learner", ["glassformer", "tokenizers"])
def test_the_vocabulary_is_smaller_if_the_text_is_too_short(learner: Any) -> None:
    tokenizer = Tokenizer.train(["abab"], vocab_size=500, scheme="char", learner=learner)
    assert tokenizer.merges == [("a", "b")]
    assert tokenizer.vocab_size == 7 + 2 + 1


@pytest.mark.parametrize("learner", ["glassformer", "tokenizers"])
@pytest.mark.parametrize(
    ("texts", "scheme", "vocab_size", "message"),
    [
        ([], "byte", 300, "no text"),
        (["", ""], "byte", 300, "no text"),
        ([" \n "], "word", 300, "no text"),
        ([TEXT], "byte", 262, "256 symbols .* and 7 special tokens; set vocab_size to at least 263"),
        (["abc"], "char", 9, "set vocab_size to at least 10"),
        (["ab", "c\ud800d"], "byte", 300, r"lone surrogate, U\+D800 at character 1"),
    ],
)
def test_wrong_training_settings_are_named(
    learner: Any, texts: list[str], scheme: Scheme, vocab_size: int, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Tokenizer.train(texts, vocab_size=vocab_size, scheme=scheme, learner=learner)


def test_wrong_special_tokens_and_schemes_are_named() -> None:
    with pytest.raises(UserError, match=r"'a' is too short"):
        Tokenizer.train([TEXT], vocab_size=300, special_tokens=["a"])
    with pytest.raises(UserError, match="given twice"):
        Tokenizer.train([TEXT], vocab_size=300, special_tokens=["[PAD]", "[PAD]"])
    with pytest.raises(UserError, match="unknown tokenizer scheme 'bytes'; use one of byte, char"):
        Tokenizer.train([TEXT], vocab_size=300, scheme="bytes")  # type: ignore[arg-type]


def test_training_counts_an_iterator_in_one_pass() -> None:
    lines = (f"line {i % 10}\n" for i in range(1000))
    assert count_chunks(lines, "char", characters_only=True).total() == 7 * 1000
    assert next(lines, None) is None
    assert len(count_chunks((f"line {i % 10}\n" for i in range(1000)), "char")) == 10


def test_pitfall_22_a_tokenizer_depends_only_on_its_training_text() -> None:
    train, validation = "aaaa bbbb", "aaaa zzzz"
    tokenizer = Tokenizer.train([train], vocab_size=0, scheme="char")
    assert "z" not in tokenizer.vocab
    assert tokenizer.encode(validation)[-1] == tokenizer.unk_id


@pytest.mark.parametrize("scheme", SCHEMES)
def test_save_and_load_give_the_same_tokenizer(
    scheme: Scheme, tokenizers_by_scheme: Trained, mixed_lines: list[str], tmp_path: Path
) -> None:
    tokenizer = tokenizers_by_scheme[scheme]
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert loaded.scheme == scheme
    assert loaded.vocab == tokenizer.vocab
    assert loaded.frequencies == tokenizer.frequencies
    assert loaded.encode_batch(mixed_lines[:500]) == tokenizer.encode_batch(mixed_lines[:500])
    assert loaded.encode_longest_match(TEXT) == tokenizer.encode_longest_match(TEXT)
    assert loaded.to_json() == tokenizer.to_json() == path.read_text(encoding="utf-8")
    assert loaded.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_same_text_gives_the_same_file() -> None:
    first = Tokenizer.train([TEXT, "more"], vocab_size=300)
    again = Tokenizer.train(["more", TEXT], vocab_size=300)
    assert first.to_json() == again.to_json()
    assert first.fingerprint != Tokenizer.train([TEXT], vocab_size=299).fingerprint


def edited(change: dict[str, Any], part: str = "model") -> str:
    description = json.loads(Tokenizer.train([TEXT], vocab_size=50, scheme="char").to_json())
    description[part].update(change)
    return json.dumps(description)


def test_a_file_of_another_kind_is_refused_with_the_reason(tmp_path: Path) -> None:
    cases = {
        "not a valid tokenizer.json": ["", "{", "[]", "{}", '{"model": {}}', edited({"frequencies": "many"})],
        "model.type: .* got Unicorn": [edited({"type": "Unicorn"})],
        "its vocabulary has only special tokens": [edited({"vocab": {}, "merges": []})],
        "model.dropout is 0.5": [edited({"dropout": 0.5})],
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


def test_a_file_of_another_scheme_is_used_unchanged() -> None:
    words = models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")
    elsewhere = tokenizers.Tokenizer(words)
    elsewhere.add_special_tokens(["[UNK]"])
    for text in (
        elsewhere.to_str(),
        tokenizers.Tokenizer(words).to_str(),
        tokenizers.Tokenizer(models.Unigram([("[UNK]", 0.0), ("a", 0.0)], unk_id=0)).to_str(),
        tokenizers.Tokenizer(models.BPE({"a": 0}, [])).to_str(),
        edited({"pattern": {"String": "\t"}}, "pre_tokenizer"),
        edited({"byte_fallback": True}),
        edited({"fuse_unk": False}),
    ):
        loaded = Tokenizer.from_json(text)
        assert loaded.scheme is None and loaded.frames.prompt.n_added == 0
        assert loaded.encode("a") == [loaded.vocab["a"]] and loaded.decode([loaded.vocab["a"]]) == "a"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file: .*tokenizer\.json"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_truncation_and_padding_of_a_file_are_ignored(characters: Tokenizer) -> None:
    rust = tokenizers.Tokenizer.from_str(characters.to_json())
    rust.enable_truncation(3)
    rust.enable_padding(length=20)
    assert len(Tokenizer.from_json(rust.to_str()).encode("to be or")) == 8


@pytest.mark.parametrize("scheme", ["char", "word", "whitespace"])
def test_pitfall_27_unknown_characters_follow_the_stated_rule(scheme: Scheme) -> None:
    tokenizer = Tokenizer.train([TEXT], vocab_size=0, scheme=scheme)
    unk = tokenizer.unk_id
    ids = tokenizer.encode("b☃🙂e é")
    assert [i == unk for i in ids].count(True) == 2
    assert ids[:3] == [tokenizer.vocab["b"], unk, tokenizer.vocab["e"]]
    assert "[UNK]" in tokenizer.decode(ids)
    assert tokenizer.encode_longest_match("b☃🙂e é") == ids


@pytest.mark.parametrize("scheme", ["char", "word", "whitespace"])
def test_pitfall_27_without_unk_an_unknown_character_is_an_error_that_names_it(scheme: Scheme) -> None:
    tokenizer = Tokenizer.train([TEXT], vocab_size=60, scheme=scheme, special_tokens=())
    assert tokenizer.encode("to be") == tokenizer.reference.encode("to be")
    message = r"the character '☃' \(U\+2603\) is not in the vocabulary"
    for _ in range(2):  # the second attempt is refused too
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


def test_text_cannot_contain_the_mark_of_a_word_end() -> None:
    tokenizer = Tokenizer.train(["a␣b c"], vocab_size=0, scheme="word", special_tokens=())
    assert tokenizer.tokens(tokenizer.encode("a␣b")) == ["a", "\ufffd", "b", "</w>"]
    with pytest.raises(UserError, match=r"U\+FFFD"):
        Tokenizer.train(["a b"], vocab_size=0, scheme="word", special_tokens=()).encode("a␣b")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_lone_surrogate_is_an_error_that_names_it(scheme: Scheme, tokenizers_by_scheme: Trained) -> None:
    tokenizer = tokenizers_by_scheme[scheme]
    with pytest.raises(UserError, match=r"lone surrogate, U\+DCFF at character 2"):
        tokenizer.encode("ab\udcff")
    with pytest.raises(UserError, match=r"lone surrogate"):
        tokenizer.encode_batch(["ab", "\ud800"])
    with pytest.raises(UserError, match=r"lone surrogate"):
        tokenizer.explain("\ud800")


def test_dropout_is_reproducible_and_keeps_the_text(tokenizers_by_scheme: Trained) -> None:
    tokenizer = tokenizers_by_scheme["byte"]
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


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_longest_match_covers_the_text(scheme: Scheme, tokenizers_by_scheme: Trained) -> None:
    tokenizer = tokenizers_by_scheme[scheme]
    replayed, matched = tokenizer.encode(TEXT), tokenizer.encode_longest_match(TEXT)

    def text(ids: list[int]) -> str:
        return "".join(tokenizer.id_to_token(i) for i in ids)

    assert text(matched) == text(replayed) == "".join(pipeline(scheme).chunks(TEXT))
    assert tokenizer.encode_longest_match("a[MASK]", allow_special=["[MASK]"])[-1] == tokenizer.mask_id


def test_explain_shows_the_merges_of_a_word() -> None:
    tokenizer = Tokenizer.train(["low low low lower newer"], vocab_size=0, scheme="word")
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


@pytest.mark.parametrize("scheme", SCHEMES)
def test_explain_ends_at_the_ids_of_encode(
    scheme: Scheme, tokenizers_by_scheme: Trained, mixed_lines: list[str]
) -> None:
    tokenizer = tokenizers_by_scheme[scheme]
    for line in mixed_lines[:300]:
        explanation = tokenizer.explain(line)
        assert [i for chunk in explanation.chunks for i in chunk.token_ids] == tokenizer.encode(line)
        assert "Ġ" in line or "Ġ" not in str(explanation)


def test_a_report_counts_tokens_and_unknown_characters(characters: Tokenizer) -> None:
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


def test_a_tokenizer_can_be_called_and_has_a_length(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["to be, or not to be"] * 3, vocab_size=290)
    assert len(tokenizer) == tokenizer.vocab_size == len(tokenizer.vocab) > 200
    ids, mask = tokenizer("to be")
    assert ids.tolist() == tokenizer.encode("to be") and mask.all() and ids.shape == mask.shape
    both = tokenizer(["to be", "or"])
    short = tokenizer.encode("or")
    assert both.ids.shape == both.mask.shape == (2, max(len(ids), len(short)))
    assert both.ids[1][both.mask[1]].tolist() == short and both.mask.sum() == len(ids) + len(short)
    assert (both.ids[~both.mask] == tokenizer.pad_id).all()
    bare = Tokenizer.train(["ab"], vocab_size=0, scheme="char", special_tokens=())
    assert bare(["ab", "ba"]).ids.shape == (2, 2), "rows of equal length need no padding"
    with pytest.raises(UserError, match=r"no special token \[PAD\]"):
        bare(["ab", "a"])
    path = str(tmp_path / "tokenizer.json")
    tokenizer.save(path)
    assert Tokenizer.load(path).fingerprint == tokenizer.fingerprint
    assert repr(tokenizer) == f"Tokenizer(byte, {len(tokenizer)} tokens)"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda _: Tokenizer("runs/a/tokenizer.json"), r"Tokenizer\.load\(path\)"),
        (lambda _: Tokenizer.load(5), "path must be a path"),
        (lambda tokenizer: tokenizer.encode(5), "text: expected a str, got int"),
        (lambda tokenizer: tokenizer.encode(["a"]), "got list; use encode_batch for several"),
        (lambda tokenizer: tokenizer.encode_batch("ab"), "texts: expected a list of str, got str; use encode for one"),
        (lambda tokenizer: tokenizer.encode_batch(["a", 5]), "got an item of type int"),
        (lambda tokenizer: tokenizer(None), "texts: expected a list of str, got NoneType"),
        (lambda tokenizer: tokenizer.decode("ab"), "ids: expected a list of token ids"),
        (lambda tokenizer: tokenizer.decode(5), "ids: expected a list of token ids"),
        (lambda tokenizer: tokenizer.decode([0.5]), "ids: expected a list of token ids"),
    ],
)
def test_wrong_arguments_of_a_tokenizer_are_named(call: Any, words: str) -> None:
    tokenizer = Tokenizer.train(["ab"], vocab_size=0, scheme="char", special_tokens=())
    with pytest.raises(UserError, match=words):
        call(tokenizer)


@pytest.mark.parametrize("scheme", ["word", "whitespace", "char", "byte"])
def test_a_tokenizer_of_a_vocabulary_and_merges_equals_the_trained_one(scheme: Scheme) -> None:
    trained = Tokenizer.train(["to be, or not to be, that is the question"] * 3, vocab_size=300, scheme=scheme)
    made = Tokenizer.from_merges(trained.vocab, trained.merges, scheme=scheme, special_tokens=trained.special_tokens)
    text = "to be the question, or not"
    assert made.encode(text) == trained.encode(text) and made.vocab == trained.vocab
    assert made.decode(made.encode(text)) == trained.decode(trained.encode(text))


def test_a_vocabulary_with_gaps_equals_tiktoken(tmp_path: Path) -> None:
    """A vocabulary like cl100k's: 256 bytes, merges, and special tokens with ids far above those of the merges."""
    tiktoken = pytest.importorskip("tiktoken")
    text = "the cat sat on the mat, and the rat"
    trained = Tokenizer.train([text] * 3, vocab_size=280, scheme="byte", special_tokens=())
    byte_of = {BYTE_TO_CHARACTER[byte]: byte for byte in range(256)}
    ranks = {bytes(byte_of[character] for character in token): i for token, i in trained.vocab.items()}
    special = {"<|endoftext|>": len(ranks) + 1, "<|endofprompt|>": len(ranks) + 19}
    theirs = tiktoken.Encoding("gaps", pat_str=r"[^\s]+|\s+", mergeable_ranks=ranks, special_tokens=special)
    ours = Tokenizer.from_merges(trained.vocab | special, trained.merges, special_tokens=list(special))
    assert ours.vocab_size == theirs.n_vocab == max(special.values()) + 1
    for word in ("the", "cat", "mat", "that", "ratthe", "é", "日本"):
        assert ours.encode(word) == theirs.encode(word)
        assert ours.decode(ours.encode(word)) == word
    ours.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.vocab == ours.vocab and {name: again.vocab[name] for name in special} == special
    assert all(again.vocab[f"<|unused_{i}|>"] == i for i in range(len(ranks) + 2, len(ranks) + 19))


def test_names_of_other_libraries_are_answered() -> None:
    tokenizer = Tokenizer.train(["a b"], vocab_size=0, scheme="char")
    with pytest.raises(AttributeError, match=r"use tokenizer\.tokens\(tokenizer\.encode\(text\)\)"):
        tokenizer.tokenize("a b")
    with pytest.raises(AttributeError, match=r"has no attribute 'foo'$"):
        tokenizer.foo  # noqa: B018


@pytest.mark.parametrize("roles", [None, {"unk": "[UNK]"}], ids=["no roles", "roles"])
def test_more_special_tokens_change_nothing_else(roles: dict[str, str] | None) -> None:
    trained = Tokenizer.train(["a b"], vocab_size=0, scheme="char", special_tokens=("[UNK]",))
    rust = tokenizers.Tokenizer.from_str(trained.to_json())
    before = Tokenizer(rust, trained.frequencies, roles, "{{ messages[0].content }}")
    after = before.with_special_tokens(["[MASK]"])
    assert after.chat_template == before.chat_template and after.special_tokens == ("[UNK]", "[MASK]")
    assert before.frequencies and after.frequencies == (*before.frequencies, 0)
    assert after.roles == (None if roles is None else {**roles, "mask": "[MASK]"})
    files = [json.loads(one.to_json()) for one in (before, after)]
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        assert files[0][part] == files[1][part]


@pytest.mark.parametrize("scheme", ["byte", "char", "word"])
def test_the_number_of_merges_can_be_given_instead_of_the_size(scheme: Scheme) -> None:
    made = Tokenizer.train([TEXT] * 2, merges=9, scheme=scheme)
    assert len(made.merges) == 9
    assert made.vocab == Tokenizer.train([TEXT] * 2, vocab_size=made.vocab_size, scheme=scheme).vocab
    assert Tokenizer.train([TEXT] * 2, num_merges=9, scheme=scheme).vocab == made.vocab


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give vocab_size, the number of all tokens, or merges"),
        ({"vocab_size": 300, "merges": 9}, "give vocab_size, the number of all tokens, or merges"),
        ({"merges": 9, "scheme": "whole_words"}, "merges has no effect with whole words: give vocab_size"),
        ({"merges": 9, "learner": "tokenizers"}, "merges has no effect with tokenizers: give vocab_size"),
    ],
)
def test_a_size_is_given_once(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Tokenizer.train([TEXT], **given)


def test_one_text_is_a_text_and_a_name_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Tokenizer.train(TEXT, vocab_size=280).vocab == Tokenizer.train([TEXT], vocab_size=280).vocab
    with pytest.raises(UserError, match=r"no such file: my book\.txt"):
        Tokenizer.train("my book.txt", vocab_size=280)
    name = "the text of a long name.txt"
    Path(name).write_text(TEXT, "utf-8")
    assert Tokenizer.train(name, vocab_size=280).vocab == Tokenizer.train([TEXT], vocab_size=280).vocab


def test_rows_of_one_length_are_cut_and_padded(characters: Tokenizer) -> None:
    ids, mask = characters("to be", max_length=7)
    assert ids.tolist() == [*characters.encode("to be"), 0, 0] and mask.tolist() == [True] * 5 + [False] * 2
    both = characters(["to be", "or"], max_len=3, padding=True, truncation=True)
    assert both["input_ids"].tolist() == [characters.encode("to "), [*characters.encode("or"), 0]]
    assert both["attention_mask"].tolist() == [[True] * 3, [True, True, False]]
    assert both["ids"] is both[0] is both.ids
    with pytest.raises(KeyError):
        both["count"]
    with pytest.raises(TypeError, match=r"no argument 'return_tensors': torch\.from_numpy\(ids\)"):
        characters("to be", return_tensors="pt")


def test_a_tokenizer_is_made_by_training() -> None:
    for given in ({}, {"vocab_size": 300}):
        with pytest.raises(UserError, match=r"or train one with Tokenizer\.train\(texts, vocab_size=…\)"):
            Tokenizer(**given)
