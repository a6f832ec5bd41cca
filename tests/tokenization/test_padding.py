"""Padding and truncation."""

import pytest

from glassformer.common.errors import UserError
from glassformer.tokenization import Tokenizer, pad, truncate


def test_padding_works_on_both_sides() -> None:
    ids, mask = pad([[1, 2, 3], [4], []], 9, side="left")
    assert ids.tolist() == [[1, 2, 3], [9, 9, 4], [9, 9, 9]]
    assert mask.tolist() == [[True] * 3, [False, False, True], [False] * 3]
    ids, mask = pad([[1, 2, 3], [4]], 9, max_len=4)
    assert ids.tolist() == [[1, 2, 3, 9], [4, 9, 9, 9]]
    assert (str(ids.dtype), str(mask.dtype)) == ("int64", "bool")
    assert pad([], 0)[0].shape == (0, 0)


def test_truncation_is_never_silent() -> None:
    with pytest.raises(UserError, match="row 1 has 3 tokens, more than max_len = 2"):
        pad([[1], [1, 2, 3]], 0, max_len=2)
    assert pad([[1], [1, 2, 3]], 0, max_len=2, truncate_side="left")[0].tolist() == [[1, 0], [2, 3]]
    assert pad([[1, 2, 3]], 0, max_len=2, truncate_side="right")[0].tolist() == [[1, 2]]
    assert truncate([1, 2, 3], 0, "left") == []


def test_the_tokenizer_pads_with_its_own_token(characters: Tokenizer, only_bytes: Tokenizer) -> None:
    ids, mask = characters.pad(characters.encode_batch(["to", "b"]))
    assert ids[1, 1] == characters.pad_id
    assert not mask[1, 1]
    with pytest.raises(UserError, match=r"no special token \[PAD\]"):
        only_bytes.pad([[1]])
