"""Fillings replace their masks: candidates of a plain forward pass, and spans by their sentinels."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glassformer.common.errors import UserError
from glassformer.config.transformer import Stack, TransformerConfig
from glassformer.inference.fill import MaskFiller, WritingFiller
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer
from glassformer.tokenization.tokenizer import Tokenizer
from tolerances import NETWORK, is_close, near

TEXT = "the cat sat on the mat and the dog ran. "


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT * 3], vocab_size=280).with_special_tokens(["[SPAN_0]", "[SPAN_1]"])


@pytest.fixture(scope="module")
def network(tokenizer: Tokenizer) -> Transformer:
    config = TransformerConfig(encoder=Stack(2, 2), d_model=16, vocab_size=tokenizer.vocab_size, max_len=32)
    network = build_model(config).eval()
    assert isinstance(network, Transformer)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim > 1:  # a norm's random bias would predict the same at every mask
                parameter.normal_(std=0.5)
    return network


@torch.no_grad()
def test_candidates_equal_a_plain_forward_at_each_mask(network: Transformer, tokenizer: Tokenizer) -> None:
    found = MaskFiller(network, tokenizer).fill("the [MASK] sat on [MASK].", 3)
    row = [tokenizer.cls_id, *tokenizer.encode("the"), tokenizer.mask_id, *tokenizer.encode(" sat on")]
    row += [tokenizer.mask_id, *tokenizer.encode("."), tokenizer.sep_id]
    logits = network(torch.tensor([row]))[0]
    special = [tokenizer.vocab[token] for token in tokenizer.special_tokens]
    logits[:, special] = -torch.inf
    places = [place for place, token in enumerate(row) if token == tokenizer.mask_id]
    best = logits[places].softmax(dim=1).topk(3)
    assert [[c.token_id for c in of_mask] for of_mask in found.candidates] == best.indices.tolist()
    for of_mask, values in zip(found.candidates, best.values.tolist(), strict=True):
        assert [c.probability for c in of_mask] == near(values, terms=NETWORK)
    (first, second) = best.indices[:, 0].tolist()
    assert first != second, "equal predictions would hide a swap"
    expected = [first if i == places[0] else second if i == places[1] else token for i, token in enumerate(row)]
    assert found.text == tokenizer.decode(expected)


def test_spans_replace_their_masks(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    sentinels = [tokenizer.vocab["[SPAN_0]"], tokenizer.vocab["[SPAN_1]"]]
    read: list[Any] = []

    def written(filler: WritingFiller, source: list[int], **settings: Any) -> list[int]:
        read.append(source)
        first, second = tokenizer.encode(" cat"), tokenizer.encode(" the mat")
        return [sentinels[0], *first, sentinels[1], *second]

    monkeypatch.setattr(WritingFiller, "write", written)
    translator: Any = SimpleNamespace(tokenizer=tokenizer)
    found = WritingFiller(translator, sentinels).fill("the [MASK] sat on [MASK].")
    assert found.text == "the cat sat on the mat." and found.candidates == []
    assert [token for token in read[0] if token in sentinels] == sentinels


@pytest.mark.parametrize("n", [0, -3])
def test_fewer_than_one_candidate_is_refused(network: Transformer, tokenizer: Tokenizer, n: int) -> None:
    with pytest.raises(UserError, match=rf"n is {n} and must be at least 1"):
        MaskFiller(network, tokenizer).fill("a [MASK]", n)


def test_candidates_are_at_most_the_tokens(network: Transformer, tokenizer: Tokenizer) -> None:
    (of_mask,) = MaskFiller(network, tokenizer).fill("[MASK]", 10_000).candidates
    assert len(of_mask) == tokenizer.vocab_size - len(tokenizer.special_tokens)
    assert is_close(sum(c.probability for c in of_mask), 1)
