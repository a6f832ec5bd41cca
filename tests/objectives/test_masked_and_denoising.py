"""Masked and denoising objectives: targets never leak into inputs; the loss needs only the scored logits."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from glassformer.config.run import InfillingConfig, Run, SpansConfig
from glassformer.config.transformer import Stack, TokenHead, TransformerConfig
from glassformer.data.batching import NOT_SCORED, Example
from glassformer.models.build import build_model
from glassformer.objectives.classification import RegressionObjective
from glassformer.objectives.loss import token_cross_entropy
from glassformer.objectives.noise import MaskedObjective
from glassformer.objectives.seq2seq import DenoisingObjective, Seq2SeqObjective
from glassformer.tasks.denoising import infilling_noise, span_noise
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.tokenization.vocabulary import word_boundaries
from tolerances import F64, near

TEXT = "The cat sat. The dog ran away! Was it the mat? Yes, it was on the mat, and so was the cat."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT] * 3, vocab_size=300).with_special_tokens(["[SPAN_0]", "[SPAN_1]", "[SPAN_2]"])


def objective(tokenizer: Tokenizer, **options: object) -> MaskedObjective:
    assert tokenizer.mask_id is not None
    return MaskedObjective(
        tokenizer.mask_id,
        word_boundaries(tokenizer),
        frame=tokenizer.frames.text,
        **options,  # type: ignore[arg-type]
    )


def examples(tokenizer: Tokenizer) -> list[Example]:
    ids = np.array(tokenizer.encode(TEXT))
    return [Example(ids), Example(ids[:9]), Example(ids[4:20])]


def test_the_loss_at_labels_equals_the_loss_of_all_logits(tokenizer: Tokenizer) -> None:
    config = TransformerConfig(
        encoder=Stack(2, 2), d_model=16, vocab_size=tokenizer.vocab_size, max_len=64,
        norm_order="post", embedding_norm=True, head=TokenHead(transform=True, bias="learned"),
    )  # fmt: skip
    network = build_model(config).double().eval()
    masked = objective(tokenizer)
    batch = masked.collate(examples(tokenizer), np.random.default_rng(0))
    sums = masked.loss(network, batch)
    everywhere = network(batch.token_ids, batch.attention_mask)
    expected = token_cross_entropy(everywhere, batch.labels, batch.n_targets)
    assert sums.total.item() == near(expected.total.item(), dtype=F64)
    assert sums.n_targets == int((batch.labels != NOT_SCORED).sum()) == len(batch.loss_positions)  # type: ignore[arg-type]


def test_no_special_token_is_chosen_or_drawn_as_replacement(tokenizer: Tokenizer) -> None:
    """A window over several documents has an end token in the middle of a row."""
    assert tokenizer.eos_id is not None
    row = np.array([*tokenizer.encode(TEXT), tokenizer.eos_id, *tokenizer.encode(TEXT)])
    place = 1 + len(tokenizer.encode(TEXT))  # after [CLS]
    special = {tokenizer.vocab[token] for token in tokenizer.special_tokens}
    replaced = set()
    for seed in range(300):
        batch = objective(tokenizer, mask_prob=0.5).collate([Example(row)], np.random.default_rng(seed))
        assert batch.labels[0, place] == NOT_SCORED and batch.token_ids[0, place] == tokenizer.eos_id
        replaced |= set(batch.token_ids[0][batch.labels[0] != NOT_SCORED].tolist())
    assert replaced & special == {tokenizer.mask_id} and len(replaced) > 0.9 * (tokenizer.vocab_size - len(special))


def test_special_tokens_frame_rows_and_are_never_chosen(tokenizer: Tokenizer) -> None:
    for seed in range(30):
        batch = objective(tokenizer, mask_prob=0.5).collate(examples(tokenizer), np.random.default_rng(seed))
        for row, labels, example in zip(batch.token_ids, batch.labels, examples(tokenizer), strict=True):
            n = len(example.token_ids)
            assert row[0] == tokenizer.cls_id and row[n + 1] == tokenizer.sep_id
            assert labels[0] == labels[n + 1] == NOT_SCORED and (labels[n + 2 :] == NOT_SCORED).all()


def test_each_seed_gives_different_masks(tokenizer: Tokenizer) -> None:
    draw = lambda seed: objective(tokenizer).collate(examples(tokenizer), np.random.default_rng(seed)).labels  # noqa: E731
    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))


@pytest.mark.parametrize("scheme", ["byte", "char"])
def test_whole_words_follow_the_words_of_the_text(scheme: Any) -> None:
    """Words have combining accents, vowel signs, digits or underscores; each ideograph is a word."""
    words = ["naïve", "cafe\u0301s", "well", "known", "wordings", "हिन्दी", "東", "京", "42nd", "re_read"]
    text = "naïve cafe\u0301s, well-known wordings. हिन्दी 東京 42nd re_read"
    tokenizer = Tokenizer.train([text], vocab_size=270, scheme=scheme)
    ids = np.array(tokenizer.encode(text))
    ends = np.cumsum([len(tokenizer.pieces[i]) for i in ids])
    begins = [text.encode().index(word.encode()) for word in words]
    places = [
        np.flatnonzero((ends > begin) & (ends <= begin + len(word.encode())))
        for begin, word in zip(begins, words, strict=True)
    ]
    assert sum(map(len, places)) > 2 * len(words), "words of several tokens"
    whole = objective(tokenizer, whole_words=True, mask_prob=0.3)
    chosen = np.array(
        [
            (whole.collate([Example(ids)], np.random.default_rng(seed)).labels[0, 1:-1] != NOT_SCORED).numpy()
            for seed in range(60)
        ]
    )
    for place in places:
        assert (chosen[:, place] == chosen[:, place[:1]]).all() and 0 < chosen[:, place[0]].mean() < 1
    firsts = chosen[:, [place[0] for place in places]]
    for one, other in itertools.combinations(range(len(words)), 2):
        if scheme == "char" or words[other] != "京":  # bytes of two ideographs have no boundary between words
            assert (firsts[:, one] != firsts[:, other]).any(), (words[one], words[other])


def test_masks_hide_their_targets_from_a_model_that_copies(tokenizer: Tokenizer) -> None:
    """A model that copies its input is right only at chosen tokens that stay unchanged: about one in ten."""

    class Copy(nn.Module):
        def forward(self, token_ids: torch.Tensor, loss_positions: torch.Tensor, **_: torch.Tensor) -> torch.Tensor:
            return nn.functional.one_hot(token_ids.flatten()[loss_positions], tokenizer.vocab_size).double()

    right = n = 0
    for seed in range(200):
        batch = objective(tokenizer).collate(examples(tokenizer), np.random.default_rng(seed))
        predicted = Copy()(**batch.model_inputs()).argmax(dim=1)
        right += int((predicted == batch.labels.flatten()[batch.loss_positions]).sum())
        n += batch.n_targets
    assert abs(right / n - 0.1) < 0.03


def test_denoising_makes_pairs_for_sequence_to_sequence(tokenizer: Tokenizer) -> None:
    assert tokenizer.mask_id is not None and tokenizer.eos_id is not None
    pairs = Seq2SeqObjective(2, tokenizer.frames.source, tokenizer.frames.target)
    bart = DenoisingObjective(infilling_noise(Run(objective=InfillingConfig()), tokenizer), pairs)
    batch = bart.collate(examples(tokenizer), np.random.default_rng(0))
    whole = tokenizer.encode(TEXT)
    assert batch.labels[0].tolist() == [*whole, tokenizer.eos_id] and batch.source_ids is not None
    assert (batch.source_ids[0] == tokenizer.mask_id).any() and len(batch.source_ids[0]) <= len(whole) + 1
    sentinels = [tokenizer.vocab[f"[SPAN_{i}]"] for i in range(3)]
    t5 = DenoisingObjective(span_noise(Run(objective=SpansConfig()), tokenizer), pairs)
    batch = t5.collate(examples(tokenizer)[:1], np.random.default_rng(0))
    removed = [i for i in batch.labels[0].tolist() if i not in (*sentinels, tokenizer.eos_id)]
    assert len(removed) == round(0.15 * len(whole)) and batch.labels[0, 0] == sentinels[0]


def test_sentence_boundaries(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    ends = word_boundaries(tokenizer).ends_sentence[ids]
    assert [tokenizer.decode([i]).strip() for i in np.array(ids)[ends]] == [".", "!", "?", "."]


def test_the_loss_of_a_number_is_gaussian() -> None:
    class Zero(nn.Module):
        def forward(self, token_ids: torch.Tensor, **_: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(token_ids), 1)

    batch = RegressionObjective().collate(
        [Example(np.array([1]), label=2.0), Example(np.array([1, 2]), label=0.0)], np.random.default_rng(0)
    )
    expected = -torch.distributions.Normal(0.0, 1.0).log_prob(torch.tensor([2.0, 0.0])).sum()
    assert RegressionObjective().loss(Zero(), batch).nats.item() == pytest.approx(expected.item())
