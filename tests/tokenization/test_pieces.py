"""A text that is read in pieces has the ids of the whole text, for every tokenizer."""

import random
from collections.abc import Sequence

import pytest

from glassformer.data import tokens
from glassformer.data.texts import cut
from glassformer.data.tokens import Encoding, encode_pieces, encode_text
from glassformer.tokenization import SCHEMES, Scheme, Tokenizer
from tokenization.families import families

IMPORTED = ["bert", "bert-cased", "gpt2", "roberta", "llama-3", "llama-2", "llama-2-legacy", "t5", "qwen"]


@pytest.fixture(scope="module")
def every_tokenizer(
    documents: Sequence[str], mixed_lines: Sequence[str], tokenizers_by_scheme: dict[Scheme, Tokenizer]
) -> dict[str, Tokenizer]:
    found = families([*documents[:40], *mixed_lines[:300]])
    assert set(found) == set(IMPORTED)
    imported = {name: Tokenizer.imported(rust.to_str(), roles) for name, (rust, roles) in found.items()}
    return {**imported, **tokenizers_by_scheme}


@pytest.mark.parametrize("name", [*IMPORTED, *SCHEMES])
def test_pieces_have_the_ids_of_the_whole_text(
    name: str,
    every_tokenizer: dict[str, Tokenizer],
    documents: Sequence[str],
    mixed_lines: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("glassformer.data.texts.PIECE_CHARACTERS", 40)
    monkeypatch.setattr(tokens, "BATCH_CHARACTERS", 300)
    tokenizer, rng, n_pieces = every_tokenizer[name], random.Random(name), 0
    for number in range(20):
        lines = rng.choices(mixed_lines, k=20) if number % 2 else rng.choice(documents)[:2000].split("\n")
        text = "".join(line + rng.choice(["\n", "\n", "\n\n", "\n \n", " \n", "\n\t"]) for line in lines) + "end"
        n_pieces += len(list(cut([text])))
        whole = tokenizer.encode(text)
        parts = list(encode_pieces(cut([text, text]), Encoding(tokenizer)))  # one document, in two blocks
        assert [i for part in parts for i in part.ids.tolist()] == tokenizer.encode(text + text)
        assert encode_text(tokenizer, [text]).ids.tolist() == whole
        several = encode_text(tokenizer, [text, "x", text])
        end = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
        assert several.ids.tolist() == [*whole, *end, *tokenizer.encode("x"), *end, *whole, *end]
        assert several.document_starts.tolist()[1] == len(whole) + len(end)
    assert n_pieces > 100
