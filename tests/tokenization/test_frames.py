"""The frames of a `tokenizer.json` equal what the library `tokenizers` puts around texts, or the file is refused."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors

from glassformer.common.errors import UserError
from glassformer.tokenization import Tokenizer, pad
from glassformer.tokenization.frames import Frames

VOCAB = {"[CLS]": 0, "[SEP]": 1, "</s>": 2, "a": 3, "b": 4, "1": 5}
SPECIAL = [(token, i) for token, i in VOCAB.items() if i < 3]
PIECES = st.tuples(st.sampled_from(["$A", "$B", "[CLS]", "[SEP]", "</s>"]), st.integers(0, 1))
AROUND = st.lists(st.sampled_from(["[CLS]", "[SEP]", "</s>"]), max_size=2)
TEXTS = st.lists(st.sampled_from(["a", "b", "1"]), min_size=1, max_size=3).map(" ".join)


def library(single: list[str], pair: list[str], vocab: dict[str, int] = VOCAB) -> tokenizers.Tokenizer:
    found = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="a"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    found.post_processor = processors.TemplateProcessing(" ".join(single), " ".join(pair), SPECIAL)
    return found


def assert_same(rust: tokenizers.Tokenizer, frames: Frames, first: str, second: str) -> None:
    a, b = (rust.encode(text, add_special_tokens=False).ids for text in (first, second))
    assert frames.text.around(a) == rust.encode(first).ids
    pair = rust.encode(first, second)
    assert frames.pair.around_pair(a, b) == (pair.ids, pair.type_ids)


@settings(max_examples=300)
@given(st.lists(PIECES, min_size=2, max_size=6), TEXTS, TEXTS)
def test_any_template_is_read_as_the_library_reads_it_or_is_refused(
    pieces: list[tuple[str, int]], first: str, second: str
) -> None:
    template = [f"{name}:{kind}" for name, kind in pieces]
    if not {"$A", "$B"} <= {name for name, _ in pieces}:
        return
    rust = library(["$A"], template)
    try:
        frames = Frames.of_file(rust)
    except UserError:
        return
    assert_same(rust, frames, first, second)


@settings(max_examples=100)
@given(AROUND, AROUND, AROUND, st.integers(0, 1), st.integers(0, 1), TEXTS, TEXTS)
def test_every_template_with_a_before_b_is_read(
    before: list[str], between: list[str], after: list[str], middle: int, last: int, first: str, second: str
) -> None:
    separators = [f"{token}:{middle}" for token in between]
    pair = [*before, "$A", *separators, f"$B:{last}", *(f"{token}:{last}" for token in after)]
    rust = library([*before, "$A", *after], pair)
    assert_same(rust, Frames.of_file(rust), first, second)


@pytest.mark.parametrize(
    "pair", ["$B $A", "[CLS] $B:1 [SEP]:1 $A:0 [SEP]:0", "$A $B $A", "$A:1 $B:0", "[CLS]:1 $A $B:1", "$A $B:1 [SEP]:0"]
)
@pytest.mark.parametrize("vocab", [VOCAB, {**dict(SPECIAL), "a": 3}], ids=["several tokens", "one token"])
def test_a_template_that_cannot_be_represented_is_refused(pair: str, vocab: dict[str, int]) -> None:
    with pytest.raises(UserError, match="must put text A before text B, each once"):
        Frames.of_file(library(["$A"], pair.split(), vocab))


def test_padding_is_at_the_right_and_not_in_the_mask() -> None:
    ids, mask = pad([[1, 2, 3], [4], []], 9)
    assert ids.tolist() == [[1, 2, 3], [4, 9, 9], [9, 9, 9]]
    assert mask.tolist() == [[True] * 3, [True, False, False], [False] * 3]
    assert (str(ids.dtype), str(mask.dtype)) == ("int64", "bool")
    assert pad([], 0)[0].shape == (0, 0)


def test_the_tokenizer_pads_with_its_own_token(characters: Tokenizer, only_bytes: Tokenizer) -> None:
    ids, mask = characters.pad(characters.encode_batch(["to", "b"]))
    assert ids[1, 1] == characters.pad_id
    assert not mask[1, 1]
    with pytest.raises(UserError, match=r"no special token \[PAD\]"):
        only_bytes.pad([[1]])
