"""Special tokens in a text, and templates that add them around texts."""

import json
from pathlib import Path

import pytest

from glassformer.common.errors import UserError
from glassformer.tokenization import SCHEMES, SPECIAL_TOKENS, Scheme, Tokenizer


@pytest.mark.parametrize("scheme", SCHEMES)
def test_pitfall_28_no_text_gives_a_special_token_unless_allowed(scheme: Scheme, tmp_path: Path) -> None:
    text = "[MASK] is [SEP] not [MASK][UNK] a <token> [PAD]"
    path = tmp_path / "tokenizer.json"
    for learner in ("glassformer", "tokenizers"):
        trained = Tokenizer.train([text] * 50, vocab_size=400, scheme=scheme, learner=learner)
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
    description = json.loads(Tokenizer.train(["[PA [PA D]"], vocab_size=0, scheme="char").to_json())
    vocab = description["model"]["vocab"]
    for token in ["[P", "[PA", "D]"]:
        vocab[token] = len(vocab)
    del description["model"]["frequencies"]
    description["model"]["merges"] = [["[", "P"], ["[P", "A"], ["D", "]"]]
    Tokenizer.from_json(json.dumps(description))
    description["model"]["merges"] += [["[PA", "D]"]]
    with pytest.raises(UserError, match=r"its merges produce \[PAD\]"):
        Tokenizer.from_json(json.dumps(description))


def test_the_longest_of_the_allowed_special_tokens_wins() -> None:
    tokenizer = Tokenizer.train(["<a>b"], vocab_size=0, scheme="char", special_tokens=["<a>", "<a>b"])
    assert tokenizer.encode("<a>b<a>", allow_special=["<a>", "<a>b"]) == [1, 0]


def test_only_special_tokens_can_be_allowed(characters: Tokenizer) -> None:
    with pytest.raises(UserError, match="<s> is not a special token"):
        characters.encode("to be", allow_special=["<s>"])


def test_default_frames_give_special_tokens_and_token_types(characters: Tokenizer) -> None:
    frames = characters.frames
    t, o, b, e = (characters.vocab[c] for c in "tobe")
    ids, types = frames.pair.around_pair(*characters.encode_batch(["to", "be"]))
    assert (ids, types) == ([4, t, o, 5, b, e, 5], [0, 0, 0, 0, 1, 1, 1])  # [CLS] A [SEP] B [SEP]
    assert frames.text.around([t, o]) == [4, t, o, 5]
    assert frames.source.around([t, o]) == frames.target.around([t, o]) == [t, o, 3]  # A [EOS]
    assert frames.prompt.around([t, o]) == characters.encode("to") == [t, o]


def test_a_single_special_token_is_the_end_token() -> None:
    """GPT-2's file has only the special token `<|endoftext|>`."""
    assert Tokenizer.train(["abc"], vocab_size=0, special_tokens=("<|endoftext|>",)).eos_id == 0
    assert Tokenizer.train(["abc"], vocab_size=0, special_tokens=("[MASK]",)).eos_id is None
    assert Tokenizer.train(["abc"], vocab_size=0, special_tokens=("<a>", "<b>")).eos_id is None
