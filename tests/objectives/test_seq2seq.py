"""Teacher forcing: one shift, one position for start and end tokens, sums over the target alone."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from glassformer.config.transformer import SinusoidalPositions, Stack, TransformerConfig
from glassformer.data.batching import Example
from glassformer.models.build import build_model
from glassformer.objectives.seq2seq import Seq2SeqObjective
from glassformer.tokenization.frames import Frame
from tolerances import is_close

RNG = np.random.default_rng(0)
START, END, SOURCE_END = 1, 2, 3


def pair(source: list[int], target: list[int]) -> Example:
    return Example(np.array(target, dtype=np.int64), source_ids=np.array(source, dtype=np.int64))


PAIRS = [pair([5, 6, 7], [8, 9]), pair([10], [11, 12, 13, 14]), pair([15, 16], [])]


def test_pitfall_18_inputs_and_labels_are_shifted_by_one() -> None:
    batch = Seq2SeqObjective(START, Frame(after=(SOURCE_END,)), Frame(after=(END,))).collate(PAIRS, RNG)
    assert batch.token_ids.tolist() == [[1, 8, 9, 0, 0], [1, 11, 12, 13, 14], [1, 0, 0, 0, 0]]
    assert batch.labels.tolist() == [[8, 9, 2, -100, -100], [11, 12, 13, 14, 2], [2, -100, -100, -100, -100]]
    assert batch.source_ids is not None and batch.source_ids.tolist() == [[5, 6, 7, 3], [10, 3, 0, 0], [15, 16, 3, 0]]
    assert batch.n_targets == 3 + 5 + 1


def test_source_and_target_have_masks_of_their_own_lengths() -> None:
    batch = Seq2SeqObjective(START, Frame(after=(SOURCE_END,)), Frame(after=(END,))).collate(PAIRS, RNG)
    assert batch.attention_mask is not None and batch.attention_mask.sum(1).tolist() == [3, 5, 1]
    assert batch.source_attention_mask is not None and batch.source_attention_mask.sum(1).tolist() == [4, 2, 3]
    even = Seq2SeqObjective(START, Frame(after=(SOURCE_END,)), Frame(after=(END,))).collate(PAIRS[:1] * 2, RNG)
    assert even.attention_mask is None and even.source_attention_mask is None


def test_a_source_tokenizer_without_an_end_token_adds_none() -> None:
    batch = Seq2SeqObjective(START, Frame(), Frame(after=(END,))).collate(PAIRS[:1], RNG)
    assert batch.source_ids is not None and batch.source_ids.tolist() == [[5, 6, 7]]


def test_an_example_without_a_source_is_refused() -> None:
    with pytest.raises(ValueError, match="source_ids"):
        Seq2SeqObjective(START, Frame(), Frame(after=(END,))).collate([Example(np.array([4]))], RNG)


def test_the_loss_is_the_sum_over_single_pairs() -> None:
    torch.manual_seed(0)
    config = TransformerConfig(
        encoder=Stack(1, 2, d_ff=16), decoder=Stack(1, 2, d_ff=16), d_model=8, vocab_size=20, max_len=16,
        positions=SinusoidalPositions(),
    )  # fmt: skip
    model = build_model(config).double()
    objective = Seq2SeqObjective(START, Frame(after=(SOURCE_END,)), Frame(after=(END,)), label_smoothing=0.2)
    sums = objective.loss(model, objective.collate(PAIRS, RNG))
    nats = smoothed = torch.zeros((), dtype=torch.float64)
    for example in PAIRS:
        assert example.source_ids is not None
        source = torch.tensor([[*example.source_ids.tolist(), SOURCE_END]])
        target = example.token_ids.tolist()
        logits = model(torch.tensor([[START, *target]]), source_ids=source)[0]
        labels = torch.tensor([*target, END])
        nats = nats + F.cross_entropy(logits, labels, reduction="sum")
        smoothed = smoothed + F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.2)
    assert is_close(sums.nats, nats.detach()) and is_close(sums.total, smoothed)
    assert sums.n_targets == 9
